"""Write a tiny reward model: ``python tiny_reward.py POLICY OUT`` puts a random score head on the policy's config."""

import shutil
import sys
from pathlib import Path


def main(policy: Path, out: Path) -> None:
    """Write config, random weights and the policy's tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    shutil.copytree(policy, out, dirs_exist_ok=True)
    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(policy, num_labels=1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
