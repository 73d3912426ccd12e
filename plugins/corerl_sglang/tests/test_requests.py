"""Requests in SGLang's words, and why they ended."""

import pytest

from corerl_sglang_engine.requests import finish_reason

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
