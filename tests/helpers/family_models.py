"""Folders with random models of the families of docs/models.md."""

from pathlib import Path
from typing import Any

import torch
import transformers

from corerl_testing.tiny_model import write_byte_tokenizer
from corerl_torch.families.probe import randomize
from corerl_torch.families.table import Family


def write_model(folder: Path, family: Family, **changes: Any) -> Path:
    """Write config, weights and tokenizer of a model of the family's shape; equal in every process.

    Args:
        changes: of the config.
    """
    config = getattr(transformers, family.config)(**{**family.config_values(), **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        auto: Any = transformers.AutoModelForCausalLM
        model = auto.from_config(config, dtype=torch.float32)
        randomize(model)
        if config.get_text_config().tie_word_embeddings:  # or logits are so large that each sampled token is certain
            model.get_input_embeddings().weight.data.mul_(config.get_text_config().hidden_size ** -0.5)
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "layer_scalar")):
                buffer.add_(0.1 * torch.rand_like(buffer))
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder
