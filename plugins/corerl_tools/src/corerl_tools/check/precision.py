"""Findings about engines of lower precision than the trainer: rounded and quantised weights."""

from collections.abc import Iterator

from corerl.contracts.config import TrainConfig
from corerl.registry.parts import Parts
from corerl_check import Finding, QuantizedOptions, finding
from corerl_tools.check import adapters

LEVEL = "algorithm.rollout_correction.rollout_is"


def look(config: TrainConfig, parts: Parts | None, device: str) -> Iterator[Finding]:
    """Findings for an engine whose weights are those of the trainer, rounded.

    Args:
        device: of the actor.
    """
    yield from _rounded(config, parts, device)
    options = None if parts is None else parts.rollout_backend.options
    if isinstance(options, QuantizedOptions) and options.quantization != "none":
        yield from _quantized(config, options.quantization)


def _rounded(config: TrainConfig, parts: Parts | None, device: str) -> Iterator[Finding]:
    """Updates smaller than the spacing of numbers of 16 bits get lost."""
    dtype = {"auto": "fp32" if device == "cpu" else "bf16"}.get(config.model.dtype, config.model.dtype)
    if dtype == "fp32" or adapters.sent(config, parts):
        return
    metric = "the metric weights/update_lost_in_rounding measures the loss"
    if config.model.lora_rank:
        yield finding(
            "warning",
            "model.lora_rank",
            f"the engine gets base model and adapter merged and rounded to {dtype}, and the trainer computes with both "
            f"apart: early in a run most of the adapter is lost in the rounding; {metric}",
            "Set rollout.lora=adapter if the engine can, raise actor.optim.lr (LoRA needs about ten times the rate of "
            f"full training), correct with {LEVEL}=token, or set model.dtype=fp32.",
        )
    else:
        yield finding(
            "note", "model.dtype", f"weights are trained in float32 and rounded to {dtype} for the engine; {metric}"
        )


def _quantized(config: TrainConfig, quantization: str) -> Iterator[Finding]:
    """The engine samples from another policy than the trainer's, which a correction accounts for."""
    key, correction = "rollout.options.quantization", config.algorithm.rollout_correction
    stale = correction.rollout_is is None and config.trainer.max_staleness > 0
    measured = "rollout_corr/k3_kl and rollout_corr/log_prob_abs_diff measure the difference"
    if correction.acts or correction.score_centering or correction.bypass_mode or stale:
        yield finding(
            "note", key, f"the engine samples with weights in {quantization}, and rollout correction acts; {measured}"
        )
        return
    yield finding(
        "warning",
        key,
        f"the engine samples with weights in {quantization}, and training takes its responses for those of the "
        f"unquantised policy; {measured}",
        f"Set {LEVEL}=token (weights of at most algorithm.rollout_correction.rollout_is_threshold=2).",
    )
