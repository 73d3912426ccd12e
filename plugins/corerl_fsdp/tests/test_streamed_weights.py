"""Where the weights are that a strategy streams: digests and engines' buckets are on the device."""

from types import SimpleNamespace

import pytest
import torch

from corerl_fsdp import fsdp


@pytest.mark.parametrize(
    ("at_rest", "param_offload", "streamed"),
    [("meta", False, "meta"), ("cpu", True, "meta"), ("cpu", False, "cpu")],
    ids=["trained", "between calls", "offloaded"],
)
def test_weights_are_on_the_device_unless_all_is_offloaded(monkeypatch, at_rest, param_offload, streamed):
    monkeypatch.setattr(fsdp, "full", lambda parameter, device, dtype: torch.empty_like(parameter, dtype=dtype))
    strategy = object.__new__(fsdp.FsdpStrategy)
    strategy.model = torch.nn.Linear(2, 3)
    strategy.model.config = SimpleNamespace(model_type="qwen2")
    strategy.device, strategy.spec = at_rest, SimpleNamespace(device="meta")
    strategy.options = SimpleNamespace(param_offload=param_offload, timeout=60)
    found = dict(strategy._weights(torch.bfloat16))
    assert {name: tensor.device.type for name, tensor in found.items()} == {"weight": streamed, "bias": streamed}
