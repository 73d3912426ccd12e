"""Log-probs of sampled tokens, as OpenAI's dialects write them."""

import math
from typing import Any

from corerl.contracts.agents import Sampled
from corerl.contracts.tokenizers import ChatTokenizer
from corerl_gateway.errors import unsupported

LEAST = -9999.0
"""in place of minus infinity, which JSON lacks"""


def token_log_probs(tokenizer: ChatTokenizer, sampled: Sampled, with_top: bool) -> list[dict[str, Any]]:
    """One entry for each sampled token, special ones included.

    A token that holds a part of a character has the text that the tokenizer gives it.

    Raises:
        ApiError: 400: the model's server shows no log-probs.

    Args:
        with_top: ``top_logprobs`` has the sampled token itself; else it is empty.
    """
    if any(map(math.isnan, sampled.log_probs)):
        raise unsupported("logprobs", "the server of the model shows none")
    texts = tokenizer.decode([[token] for token in sampled.token_ids], skip_special_tokens=False)
    entries = []
    for text, log_prob in zip(texts, sampled.log_probs, strict=True):
        entry = {"token": text, "logprob": max(log_prob, LEAST), "bytes": list(text.encode(errors="replace"))}
        entries.append({**entry, "top_logprobs": [entry] if with_top else []})
    return entries
