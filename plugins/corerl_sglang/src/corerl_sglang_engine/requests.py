"""Conversion of requests to SGLang's form; imports no SGLang."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

UNUSED_POSITIONS = 2
"""positions at the end of the context for which SGLang generates nothing: its context is longer by this number"""


def sampling_params(asked: dict[str, Any], seed: int) -> dict[str, Any]:
    """SGLang's parameters; only ``stop_token_ids`` stop (the schedulers ignore the model's own)."""
    return {
        "max_new_tokens": asked["max_tokens"],
        "temperature": asked["temperature"],
        "top_p": asked["top_p"],
        "top_k": asked["top_k"],
        "stop_token_ids": asked["stop_token_ids"],
        "ignore_eos": asked["ignore_eos"],
        "sampling_seed": seed,
    }


def routed_experts(text: str, layers: int, top_k: int) -> Any:
    """(tokens that were read, all layers, top_k) int32, from SGLang's base64 of them."""
    return np.frombuffer(base64.b64decode(text), np.int32).reshape(-1, layers, top_k)


def finish_reason(asked: dict[str, Any], token_ids: Sequence[int], given: str) -> str:
    """``stop`` if the last token is a stop token: SGLang checks the number of tokens first, and returns ``length``."""
    stops = () if asked["ignore_eos"] else asked["stop_token_ids"]
    return "stop" if token_ids and token_ids[-1] in stops else given
