"""Findings about adapters: the bytes of an update, and the reference without a copy of the model."""

from collections.abc import Iterator

from corerl.contracts.adapters import are_sent, hold_reference
from corerl.contracts.config import TrainConfig
from corerl.registry.parts import Parts
from corerl_check import GIB, Finding, ModelSize, finding


def sent(config: TrainConfig, parts: Parts | None) -> bool:
    """Whether engines get adapters alone."""
    return parts is not None and are_sent(config, parts.strategy.entry.facts, parts.rollout_backend.entry.facts)


def shares_reference(config: TrainConfig, parts: Parts | None) -> bool:
    """Whether the reference of the run is the policy's model without its adapters."""
    return parts is not None and parts.needs_ref and hold_reference(config, parts.strategy.entry.facts)


def look(config: TrainConfig, parts: Parts, size: ModelSize) -> Iterator[Finding]:
    """Findings for a run with adapters.

    Args:
        size: of the policy.
    """
    model = size.parameters * size.bytes
    if sent(config, parts):
        adapters = size.trained * size.bytes
        sentence = f"an update sends the adapters, {adapters / 2**20:.1f} MiB, instead of {model / GIB:.2f} GiB"
        yield finding("note", "rollout.lora", sentence)
    if shares_reference(config, parts):
        sentence = f"the reference is the policy without its adapters: no copy of the model, {model / GIB:.2f} GiB"
        yield finding("note", "ref.path", sentence)
