"""Write a tiny Qwen3 model with four experts: ``python tiny_experts.py DENSE OUT``, tokenizer of the dense one."""

import shutil
import sys
from pathlib import Path


def main(dense: Path, out: Path) -> None:
    """Write config, random weights and tokenizer."""
    import torch
    from transformers import AutoConfig, Qwen3MoeConfig, Qwen3MoeForCausalLM

    shutil.copytree(dense, out, dirs_exist_ok=True)
    given = AutoConfig.from_pretrained(dense)
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=given.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        moe_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
        eos_token_id=given.eos_token_id,
        pad_token_id=given.pad_token_id,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
