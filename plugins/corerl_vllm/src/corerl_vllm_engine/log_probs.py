"""Log-probs over the whole vocabulary at the temperature, before top-p and top-k.

vLLM returns log-probs of the plain logits (``raw_logprobs``) or after top-p and top-k (``processed_logprobs``). The
sampler is set to the latter, and returns the values from just before its filter.
"""

from typing import Any


def report_before_filtering(sampler: Any) -> None:
    """Change a sampler of vLLM's first or second model runner.

    Raises:
        RuntimeError: the sampler has another structure.
    """
    if hasattr(sampler, "topk_topp_sampler"):
        _first_runner(sampler.topk_topp_sampler)
    elif hasattr(sampler, "apply_sampling_params") and hasattr(sampler, "sample"):
        _second_runner(sampler)
    else:
        raise RuntimeError(f"the sampler {type(sampler).__name__} of this vLLM is unknown")
    sampler.logprobs_mode = "processed_logprobs"


def _first_runner(filtered: Any) -> None:
    """``filtered(logits, …)`` returns tokens and log-probs of the kept tokens; logits are already divided."""
    original = filtered.forward
    filtered.logprobs_mode = "raw_logprobs"

    def forward(logits: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        log_probs = logits.log_softmax(dim=-1)  # before filtering, which works in place
        return original(logits, *args, **kwargs)[0], log_probs

    filtered.forward = forward


def _second_runner(sampler: Any) -> None:
    """``apply_sampling_params`` divides the logits; ``sample`` calls it, filters, and returns the kept tokens."""
    divide, sample = sampler.apply_sampling_params, sampler.sample
    before: list[Any] = []

    def apply_sampling_params(*args: Any, **kwargs: Any) -> Any:
        logits = divide(*args, **kwargs)
        before.append(logits.clone())  # filtering may work in place
        return logits

    def sample_and_report(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        before.clear()
        tokens = sample(*args, **kwargs)[0]
        return tokens, before.pop()

    sampler.apply_sampling_params, sampler.sample = apply_sampling_params, sample_and_report
