"""Requests for an engine, and its answers, as messages."""

from typing import Any

from corerl.contracts.rollout_backends import Completion, GenerationRequest
from corerl.errors import RunError
from corerl_engines.columns import Columns
from corerl_engines.images import described_images
from corerl_engines.process import Answer
from corerl_engines.remote import frames

FINISH_REASONS = ("stop", "length", "abort")


def described(request: GenerationRequest) -> dict[str, Any]:
    """The message of a request."""
    sampling = request.sampling
    return {
        "request_id": request.request_id,
        "session": request.session,
        "adapter": request.adapter,
        "prompt_ids": list(request.prompt_ids),
        "n": sampling.n,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "stop_token_ids": list(sampling.stop_token_ids),
        "stop": list(sampling.stop),
        "ignore_eos": sampling.ignore_eos,
        "seed": sampling.seed,
        "images": described_images(request),
    }


def completions_of(answer: Answer) -> list[Completion]:
    """The samples of an answer.

    Raises:
        RunError: the answer has no samples, or other numbers of tokens than stated.
    """
    header, payload = answer
    completions, start = [], 0
    try:
        samples = header["samples"]
        size = 8 * sum(length for length, *_ in samples)
        token_ids, log_probs = frames.unpack_numbers(payload[:size])
        recorded = Columns(payload[size:])
        for length, finish_reason, versions, columns in samples:
            if length < 0 or finish_reason not in FINISH_REASONS:
                raise ValueError(f"a sample of {length} tokens, '{finish_reason}'")
            end = start + length
            own = recorded.take(columns)
            completions.append(
                Completion(token_ids[start:end], log_probs[start:end], finish_reason, *_versions(versions, length), own)
            )
            start = end
        if start != len(token_ids) or recorded.rest:
            raise ValueError(f"{len(token_ids)} tokens for samples of {start}, and {recorded.rest} further bytes")
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"the engine's answer to generate is invalid: {type(error).__name__}: {error!s:.200}") from error
    return completions


def _versions(runs: Any, length: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The version of the first token, and the updates before the end, of runs [first token, version].

    Raises:
        ValueError: the runs are none, or do not ascend from token 0.
    """
    starts, versions = [start for start, _ in runs], [version for _, version in runs]
    numbers = [*starts, *versions]
    if starts[:1] != [0] or sorted({*starts}) != starts or not all(type(number) is int for number in numbers):
        raise ValueError(f"a sample of versions {runs!s:.100}")
    return versions[0], tuple((start, version) for start, version in runs[1:] if start < length)
