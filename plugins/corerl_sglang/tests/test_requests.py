"""Requests in SGLang's words, and why they ended."""

import base64

import numpy as np
import pytest

from corerl_sglang_engine.requests import finish_reason, routed_experts

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


def test_experts_are_read_from_sglangs_text():
    given = np.arange(24, dtype=np.int32).reshape(3, 4, 2)
    assert routed_experts(base64.b64encode(given.tobytes()).decode(), 4, 2).tolist() == given.tolist()
    with pytest.raises(ValueError, match="reshape"):
        routed_experts(base64.b64encode(given.tobytes()).decode(), 5, 2)
