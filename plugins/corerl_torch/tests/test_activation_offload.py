"""Saved tensors on the CPU: equal gradients, and no copy of a parameter."""

import contextlib
from typing import Any

import pytest
import torch

from corerl.contracts.config import ModelConfig
from corerl_testing.tiny_model import tiny_model
from corerl_torch import activation_offload
from corerl_torch.loading import load_causal_lm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_equal_to_the_last_bit_and_no_parameter_is_copied(
    checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = load_causal_lm(ModelConfig(str(tiny_model())), device=DEVICE, dtype=torch.float32).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    copied: list[torch.Tensor] = []
    stays = activation_offload._stays

    def noted(tensor: torch.Tensor, smallest: int) -> bool:
        if kept := stays(tensor, smallest):
            return kept
        copied.append(tensor)
        return kept

    monkeypatch.setattr(activation_offload, "_stays", noted)
    weights = {each.data_ptr() for each in model.parameters()}
    ids = torch.arange(40, 104, device=DEVICE).view(2, 32)
    found = []
    for context in (contextlib.nullcontext(), activation_offload.offloaded(DEVICE, smallest=1, everywhere=True)):
        with context:
            logits = model(input_ids=ids).logits
        logits.logsumexp(-1).square().sum().backward()
        found.append({name: each.grad.clone() for name, each in model.named_parameters()})
        model.zero_grad()
    assert all(torch.equal(found[0][name], each) for name, each in found[1].items())
    assert not weights & {each.data_ptr() for each in copied}
    layers = model.config.num_hidden_layers
    assert (len(copied) >= layers) and (len(copied) < 6 * layers if checkpointing else len(copied) > 10 * layers)
