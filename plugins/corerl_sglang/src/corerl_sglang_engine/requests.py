"""Conversion of requests to SGLang's form; imports no SGLang."""

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

KEEPS = "CORERL_SGLANG_KEEPS"
"""variable of the schedulers' processes: 1 if the kept tokens are recorded"""

LEAST = float(np.finfo(np.float32).min)
"""SGLang's log-prob of a token that cannot be drawn, in place of -inf"""

UNUSED_POSITIONS = 2
"""positions at the end of the context for which SGLang generates nothing: its context is longer by this number"""


def sampling_params(asked: dict[str, Any], seed: int) -> dict[str, Any]:
    """SGLang's parameters; only ``stop_token_ids`` stop (the schedulers ignore the model's own)."""
    return {
        "max_new_tokens": asked["max_tokens"],
        "temperature": asked["temperature"],
        "top_p": asked["top_p"],
        "top_k": asked["top_k"],
        "min_p": asked["min_p"],
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


def likeliest(reported: Sequence[Sequence[Any]], tokens: int, width: int) -> tuple[Any, Any]:
    """(tokens, width) ids and log-probs of the most likely tokens of each position.

    Args:
        reported: SGLang's ``output_top_logprobs``: (log-prob, id, text) of each; at most ``width`` of a position.

    Tokens that cannot be drawn have a log-prob of -inf.
    """
    token_ids, log_probs = np.zeros((tokens, width), np.int32), np.full((tokens, width), -np.inf, np.float32)
    for place, entries in enumerate(reported[:tokens]):
        for rank, (log_prob, token_id, *_) in enumerate((entries or ())[:width]):
            token_ids[place, rank] = token_id
            log_probs[place, rank] = log_prob if log_prob > LEAST else -np.inf
    return token_ids, log_probs


def adapter_config(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The adapter's config for SGLang, which knows no rsLoRA: its scale is that of an alpha larger by sqrt(rank)."""
    rank, alpha = facts["rank"], facts["alpha"]
    alpha = alpha * math.sqrt(rank) if facts["rslora"] else alpha
    return {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": list(facts["layers"])}
