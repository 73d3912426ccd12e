"""Requests in SGLang's words, and why they ended."""

import base64

import numpy as np
import pytest
import torch

from corerl.errors import ConfigError
from corerl_engines.remote.recording import KEPT, Recording
from corerl_sglang.backend import adapter_arguments
from corerl_sglang_engine.requests import LEAST, adapter_config, finish_reason, likeliest, routed_experts

ASKED = {"stop_token_ids": [3, 9], "ignore_eos": False}


@pytest.mark.parametrize(
    ("asked", "tokens", "given", "reason"),
    [
        (ASKED, [5, 3], "length", "stop"),  # the last token that max_tokens allows
        (ASKED, [9], "stop", "stop"),
        (ASKED, [3, 5], "length", "length"),
        (ASKED, [5, 4], "abort", "abort"),
        (ASKED, [5, 3], "abort", "stop"),
        (ASKED, [], "abort", "abort"),
        (ASKED | {"ignore_eos": True}, [5, 3], "length", "length"),
        (ASKED | {"stop_token_ids": []}, [5, 3], "length", "length"),
    ],
)
def test_a_response_that_ends_with_a_stop_token_was_stopped(asked: dict, tokens: list[int], given: str, reason: str):
    assert finish_reason(asked, tokens, given) == reason


def test_the_most_likely_tokens_are_arrays_whatever_a_position_has():
    reported = [[(-0.1, 7, None), (-2.5, 3, None)], [(-0.5, 4, None)], None, [(-1.0, 1, None)]]
    token_ids, log_probs = likeliest(reported, 3, 2)
    assert token_ids.tolist() == [[7, 3], [4, 0], [0, 0]]
    assert log_probs.tolist() == [pytest.approx([-0.1, -2.5]), [-0.5, float("-inf")], [float("-inf")] * 2]


def test_tokens_outside_of_the_kept_set_have_no_log_prob():
    """SGLang clamps log-probs, so that those of tokens that were not kept are finite."""
    clamped = torch.tensor([-0.5, -torch.inf]).clamp_(min=torch.finfo(torch.float32).min).tolist()
    assert clamped[1] == LEAST
    token_ids, log_probs = likeliest([list(zip(clamped, (7, 3), (None, None), strict=True))], 1, 2)
    kept, counts = Recording(["kept_tokens"], 0).columns({"temperature": 1.0, "top_k": 2}, token_ids, log_probs)[KEPT]
    assert kept.tolist() == [7] and counts.tolist() == [1]


def test_experts_are_read_from_sglangs_text():
    given = np.arange(24, dtype=np.int32).reshape(3, 4, 2)
    assert routed_experts(base64.b64encode(given.tobytes()).decode(), 4, 2).tolist() == given.tolist()
    with pytest.raises(ValueError, match="reshape"):
        routed_experts(base64.b64encode(given.tobytes()).decode(), 5, 2)


@pytest.mark.parametrize(("is_rs", "scale"), [(False, 32 / 16), (True, 32 / 4)])
def test_the_adapters_scale_is_alpha_over_rank_or_its_root(is_rs, scale):
    facts = {"rank": 16, "alpha": 32, "rslora": is_rs, "layers": ["q_proj", "v_proj"], "count": 2}
    config = adapter_config(facts)
    assert config["lora_alpha"] / config["r"] == scale and config["target_modules"] == ["q_proj", "v_proj"]
    assert config["peft_type"] == "LORA"
    arguments = adapter_arguments(facts)
    assert arguments["max_lora_rank"] == 16 and arguments["enable_weights_cpu_backup"]
    assert arguments["max_loras_per_batch"] == 3  # one for requests without an adapter
    assert adapter_arguments(None) == {}


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (["experts", "q_proj", "v_proj"], "rollout.lora: SGLang gets adapters of experts merged"),
        (["q_proj", "o_proj"], "model.target_modules: SGLang needs adapters of v_proj beside those of k_proj"),
        (["up_proj"], "SGLang needs adapters of gate_proj beside those of up_proj"),
    ],
)
def test_adapters_that_sglang_does_not_take_are_refused(layers, message):
    with pytest.raises(ConfigError, match=message):
        adapter_arguments({"rank": 16, "alpha": 32, "rslora": False, "layers": layers})
