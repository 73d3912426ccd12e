"""Log-probs at the temperature: over the whole vocabulary, or over the tokens that top-p, top-k and min-p keep.

vLLM returns log-probs of the plain logits (``raw_logprobs``) or after the filters (``processed_logprobs``). If the kept
tokens are recorded, the latter are right: all other tokens have -inf. Otherwise the sampler is set to the latter, and
returns the values from just before its filters.
"""

from typing import Any

import numpy as np


def prepare(sampler: Any, keeps: bool, bitwise: bool = False) -> None:
    """Change a sampler of vLLM's first or second model runner.

    Args:
        keeps: the kept tokens are recorded.
        bitwise: log-probs are torch's own, of float32 logits, as a training strategy's; ``keeps`` is false.

    Raises:
        RuntimeError: the sampler has another structure.
    """
    first, second = hasattr(sampler, "topk_topp_sampler"), hasattr(sampler, "apply_sampling_params")
    if keeps:
        if first:
            _first_runner_keeps_few(sampler.topk_topp_sampler)
        elif second and hasattr(sampler, "sampling_states"):
            _second_runner_keeps_few(sampler)
        else:
            raise RuntimeError(f"the sampler {type(sampler).__name__} of this vLLM is unknown")
    elif first and hasattr(sampler, "apply_temperature"):
        _first_runner(sampler)
    elif second and hasattr(sampler, "sample"):
        _second_runner(sampler, bitwise)
    else:
        raise RuntimeError(f"the sampler {type(sampler).__name__} of this vLLM is unknown")
    sampler.logprobs_mode = "processed_logits" if bitwise and not first else "processed_logprobs"


def kept(logits: Any, top_k: Any, top_p: Any) -> Any:
    """The logits of the kept tokens of rows with a ``top_k``, and of all tokens of the other rows; -inf elsewhere.

    The kept tokens are the ``top_k`` most likely ones as far as those before each have a mass below ``top_p``. vLLM's
    own filter keeps every token that is as likely as the last one of the top k, which may be more than log-probs are
    reported of, and its kernel on GPUs finds the bound of ``top_p`` by a search of limited length.

    Args:
        logits: (rows, vocabulary), after min-p.
        top_k: (rows,), the vocabulary or more for rows without a limit; None: no row has one.
        top_p: (rows,) or None.
    """
    import torch

    limited = None if top_k is None else top_k < logits.shape[-1]
    if limited is None or not limited.any():
        return logits
    most = int(torch.where(limited, top_k, 0).max())
    values, token_ids = logits.topk(most, dim=-1)
    inside = torch.arange(most, device=logits.device) < top_k[:, None]
    if top_p is not None:
        masses = values.float().masked_fill(~inside, -torch.inf).softmax(dim=-1)
        inside &= masses.cumsum(dim=-1) - masses < top_p[:, None]
    keep = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, token_ids, inside)
    return logits.masked_fill(~(keep | ~limited[:, None]), -torch.inf)


def _left(vocabulary: int, top_k: Any, top_p: Any) -> Any:
    """The ``top_p`` that is left for vLLM's filter after :func:`kept`: 1 in rows with a ``top_k``."""
    return top_p if top_k is None or top_p is None else top_p.masked_fill(top_k < vocabulary, 1.0)


def _first_runner_keeps_few(filtered: Any) -> None:
    """Its filter sees logits of :func:`kept` tokens."""
    original = filtered.forward

    def forward(logits: Any, generators: Any, top_k: Any, top_p: Any) -> Any:
        rest = _left(logits.shape[-1], top_k, top_p)
        return original(kept(logits, top_k, top_p), generators, None, rest)

    filtered.forward = forward


def _second_runner_keeps_few(sampler: Any) -> None:
    """``apply_sampling_params`` returns the logits that ``sample`` filters, in some releases by itself."""
    states = sampler.sampling_states
    divide, limits = sampler.apply_sampling_params, states.get_top_k_top_p

    def apply_sampling_params(logits: Any, rows: Any, *args: Any, **kwargs: Any) -> Any:
        numbers = next(each for each in args if isinstance(each, np.ndarray))
        return kept(divide(logits, rows, *args, **kwargs), *limits(rows, numbers))

    def get_top_k_top_p(rows: Any, numbers: Any) -> tuple[Any, Any]:
        return None, _left(states.vocab_size, *limits(rows, numbers))

    sampler.apply_sampling_params, states.get_top_k_top_p = apply_sampling_params, get_top_k_top_p


def _first_runner(sampler: Any) -> None:
    """``apply_temperature`` divides the logits; min-p follows; log-probs of ``topk_topp_sampler`` are replaced."""
    filtered, divide = sampler.topk_topp_sampler, sampler.apply_temperature
    original = filtered.forward
    filtered.logprobs_mode = "raw_logprobs"
    before: list[Any] = []

    def apply_temperature(*args: Any, **kwargs: Any) -> Any:
        logits = divide(*args, **kwargs)
        before[:] = [logits.log_softmax(dim=-1)]  # before filtering, which works in place
        return logits

    def forward(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return original(*args, **kwargs)[0], before.pop()

    sampler.apply_temperature, filtered.forward = apply_temperature, forward


def _second_runner(sampler: Any, bitwise: bool) -> None:
    """``apply_sampling_params`` divides the logits and applies min-p; ``sample`` calls it, filters, and returns what is
    kept.

    With ``bitwise`` the values are log-probs, which the sampler returns as they are: its own kernel sums in another
    order, and divides logits in their own dtype.
    """
    divide, sample = sampler.apply_sampling_params, sampler.sample
    before: list[Any] = []

    def keep_before(method: Any) -> Any:
        def apply_min_p(logits: Any, *args: Any, **kwargs: Any) -> Any:
            before[:] = [logits.clone()]
            return method(logits, *args, **kwargs)

        return apply_min_p

    states: Any = getattr(sampler, "sampling_states", None)
    if hasattr(states, "apply_min_p"):
        states.apply_min_p = keep_before(states.apply_min_p)

    def apply_sampling_params(*args: Any, **kwargs: Any) -> Any:
        before.clear()
        logits = divide(*args, **kwargs)
        if not before:
            before.append(logits.clone())  # filtering may work in place
        return logits

    def sample_and_report(logits: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        tokens = sample(logits.float() if bitwise else logits, *args, **kwargs)[0]
        values = before.pop()
        return tokens, values.log_softmax(dim=-1) if bitwise else values

    def divide_exactly(logits: Any, rows: Any, numbers: Any) -> None:
        temperatures = states.temperature.gpu[rows][:, None]
        logits.div_(temperatures.where(temperatures > 0, 1.0))

    if bitwise:
        states.apply_temperature = divide_exactly
    sampler.apply_sampling_params, sampler.sample = apply_sampling_params, sample_and_report
