"""Reading of the JSON of clients."""

import secrets
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from corerl.contracts.rollout_backends import SamplingParams
from corerl_gateway.errors import invalid, unsupported
from corerl_gateway.fields import MOST_TOP_K, Fields
from corerl_tinker.api.wire import Limits, dense
from corerl_tinker.errors import UserError
from corerl_tinker.training.sampler import SampleRequest
from corerl_tinker.training.states import Adapter
from corerl_torch.stepping import AdamStep

LEAST_TTL, MOST_TTL = 3600, 10 * 366 * 86400
MOST_SAMPLES, MOST_TOP = 1024, 1024


def adapter(fields: Fields, alpha: float) -> Adapter:
    """The adapter that a client asks for; a random seed without one."""
    config = fields.inner("lora_config") or Fields({})
    optimizer = (fields.inner("optimizer_config") or Fields({})).text("type", "adamw")
    if optimizer != "adamw":
        raise unsupported("optimizer_config.type", "this server trains by adamw")
    flags = {
        name: config.get(name) is None or config.flag(name) for name in ("train_attn", "train_mlp", "train_unembed")
    }
    seed = config.whole("seed", -(2**63), 2**63 - 1)
    own = secrets.randbits(62) if seed is None else seed
    return Adapter(config.whole("rank", 1, 4096) or 32, alpha, own, **flags)


def adam_step(fields: Fields) -> AdamStep:
    """AdamW's values.

    Raises:
        UserError: the client asks for another optimizer.
    """
    if fields.get("optimizer_params") is not None:
        raise UserError("this server trains by adamw: send AdamParams")
    given = fields.inner("adam_params") or Fields({})

    def number(name: str, default: float, most: float) -> float:
        value = given.number(name, 0.0, most)
        return default if value is None else value

    return AdamStep(
        number("learning_rate", 1e-4, 1e6),
        (number("beta1", 0.9, BELOW_ONE), number("beta2", 0.95, BELOW_ONE)),
        number("eps", 1e-12, 1e6),
        number("weight_decay", 0.0, 1e6),
        number("grad_clip_norm", 0.0, 1e300),
    )


BELOW_ONE = 1 - 2**-53


def expiry(fields: Fields) -> float | None:
    """Seconds since 1970 at which saved weights expire."""
    seconds = fields.whole("ttl_seconds", LEAST_TTL, MOST_TTL)
    return None if seconds is None else time.time() + seconds


def metadata(fields: Fields) -> Mapping[str, str]:
    """Texts of the user beside saved weights."""
    given = fields.inner("user_metadata")
    values = dict(given.values) if given else {}
    if any(not isinstance(value, str) for value in values.values()):
        raise invalid("user_metadata", "an object of texts")
    return values


def sample(fields: Fields, limits: Limits, stop_token_ids: tuple[int, ...]) -> SampleRequest:
    """A sample, with everything that it asks for.

    Args:
        stop_token_ids: of a request without stops; texts that stop come in addition to them.

    Raises:
        UserError, ApiError: it is wrong, or needs more room than the model has.
    """
    if fields.get("record_stability_info"):
        raise unsupported("record_stability_info", "leave it out")
    prompt = _prompt(fields, limits)
    given = fields.inner("sampling_params") or Fields({})
    room = limits.length - len(prompt)
    most = given.whole("max_tokens", 1)
    if room < 1 or (most is not None and most > room):
        raise UserError(
            f"the prompt has {len(prompt)} tokens and max_tokens is {most}: the model has room for {limits.length}"
        )
    texts, ids = _stops(given, limits)
    top_k, top_p = given.whole("top_k", -1, MOST_TOP_K), given.number("top_p", 1e-9, 1)
    temperature = given.number("temperature", 0, 100)
    seed = given.whole("seed", -(2**63), 2**64 - 1)
    sampling = SamplingParams(
        max_tokens=room if most is None else most,
        n=fields.whole("num_samples", 1, MOST_SAMPLES) or 1,
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=top_k if top_k else -1,
        stop_token_ids=stop_token_ids if ids is None else ids,
        stop=texts,
        seed=secrets.randbits(62) if seed is None else seed % 2**62,
    )
    return SampleRequest(prompt, sampling, **_scores(fields, prompt, limits))


def _prompt(fields: Fields, limits: Limits) -> list[int]:
    inner = fields.inner("prompt")
    tokens: list[int] = []
    for chunk in inner.items("chunks") if inner else ():
        given = chunk.get("tokens")
        if chunk.text("type", "encoded_text") != "encoded_text" or not isinstance(given, list):
            raise UserError("the prompt has a chunk that is no text: this server takes tokens alone")
        if not all(type(token) is int and abs(token) < 2**31 for token in given):
            raise UserError("the prompt has a token that is no whole number of 32 bits")
        tokens += given
    limits.check(np.asarray(tokens, np.int64), "the prompt")
    return tokens


def _stops(given: Fields, limits: Limits) -> tuple[tuple[str, ...], tuple[int, ...] | None]:
    """(texts, tokens) that stop; tokens are None where those of the model apply."""
    stop = given.get("stop")
    if isinstance(stop, list) and all(type(each) is int for each in stop):
        if not all(0 <= each < limits.vocabulary for each in stop):
            raise UserError(f"stop has a token outside of the vocabulary of {limits.vocabulary}")
        return (), tuple(stop)
    return given.texts("stop"), None


def _scores(fields: Fields, prompt: list[int], limits: Limits) -> dict[str, Any]:
    last = fields.whole("prompt_logprobs_last_n", 1)
    wanted = fields.flag("prompt_logprobs")
    if last is not None and (not wanted or last > len(prompt) - 1):
        raise UserError(f"prompt_logprobs_last_n needs prompt_logprobs, and is at most {len(prompt) - 1} here")
    return {
        "prompt_log_probs": 0 if not wanted else last or len(prompt),
        "top": fields.whole("topk_prompt_logprobs", 0, MOST_TOP) or 0,
        "sample_top": fields.whole("topk_sample_logprobs", 0, MOST_TOP) or 0,
        "targets": _targets(fields.inner("target_prompt_logprobs"), len(prompt) - 1, limits),
        "draws": fields.whole("prompt_alt_tokens_k", 0, MOST_TOP) or 0,
    }


def _targets(given: Fields | None, rows: int, limits: Limits) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """(prompt - 1, K) tokens to score, -1 for none."""
    if given is None:
        return None
    name = "target_prompt_logprobs"

    def whole(key: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        values = given.get(key)
        if not isinstance(values, list) or not all(type(each) is int and abs(each) < 2**62 for each in values):
            raise invalid(f"{name}.{key}", "a list of whole numbers")
        return np.asarray(values, np.int64)

    data, shape = whole("data"), whole("shape").tolist()
    if len(shape) != 2 or shape[0] != rows or not 1 <= shape[1] <= MOST_TOP:
        raise UserError(f"{name} must have shape [{rows}, K], one row less than the prompt has tokens")
    if given.get("sparse_crow_indices") is not None:
        found = dense(data, whole("sparse_crow_indices"), whole("sparse_col_indices"), shape, name, pad=-1)
    elif len(data) != shape[0] * shape[1]:
        raise UserError(f"{name} has shape {shape} and {len(data)} values")
    else:
        found = data.reshape(shape)
    if found.size and (found.max() >= limits.vocabulary or found.min() < -1):
        raise UserError(f"{name} has a token outside of the vocabulary of {limits.vocabulary}")
    return found
