"""Interception of the routers of several families, on tiny models."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, JetMoeConfig, Qwen2Config

from corerl.errors import ModelError, RunError
from corerl_torch.routers import Choices, Routers
from moe_models import FAMILIES, SHAPE, model_of


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=torch.arange(1, 13).view(2, 6)).logits
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_a_replay_of_the_own_choice_changes_nothing_and_another_one_is_taken(family: str) -> None:
    model = model_of(family)
    free = logits(model)
    routers = Routers(model)
    assert (routers.layers, routers.experts, routers.top_k) == (FAMILIES[family][2], 8, 2)
    routers.record()
    assert logits(model).equal(free)
    own = routers.taken()
    assert own.dtype == torch.uint8 and own.shape == (12, len(routers.layers), 2)
    known = torch.ones(12, dtype=torch.bool)
    routers.replay(Choices(own, known))
    assert logits(model).equal(free)
    routers.replay(Choices((own + 1) % 8, known))
    assert not torch.allclose(logits(model), free, atol=1e-4)
    known[6:] = False  # the second row is routed freely
    routers.replay(Choices((own + 1) % 8, known))
    torch.testing.assert_close(logits(model)[1], free[1], rtol=1e-5, atol=1e-5)
    routers.replay(None)
    assert logits(model).equal(free)


def test_experts_of_other_tokens_are_an_error() -> None:
    model = model_of("mixtral")
    routers = Routers(model)
    routers.replay(Choices(torch.zeros(5, 2, 2, dtype=torch.uint8), torch.ones(5, dtype=torch.bool)))
    with pytest.raises(RunError, match="has experts of 5 tokens, and a router has 12"):
        logits(model)


def test_other_kinds_of_choice_are_refused_in_one_line() -> None:
    shape = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_key_value_heads": 2, "kv_channels": 8}
    with torch.device("meta"):
        jetmoe = AutoModelForCausalLM.from_config(JetMoeConfig(**shape, intermediate_size=48))
        dense = AutoModelForCausalLM.from_config(Qwen2Config(**{**SHAPE, "num_hidden_layers": 1}))
    with pytest.raises(ModelError, match=r"the routers of jetmoe do not choose their experts by one top-k.*record$"):
        Routers(jetmoe)
    with pytest.raises(ModelError, match="qwen2 has no experts"):
        Routers(dense)
