"""Rules for ``actor.optim`` and ``critic.optim``; no torch."""

from collections.abc import Iterator
from typing import Any

from corerl.contracts.config import OptimConfig, TrainConfig
from corerl.errors import ConfigError, CoreRLError, RequestError
from corerl.plugins import load_plugins
from corerl.registry import Selected, UntrustedSelection
from corerl.registry.parts import Parts


def violations(config: TrainConfig, parts: Parts) -> Iterator[RequestError]:
    """A name that workers cannot find, or an optimizer that a strategy cannot use."""
    yield from _wrong("actor", config.actor.optim, parts.strategy)
    if parts.critic_strategy is not None:
        yield from _wrong("critic", config.critic.optim, parts.critic_strategy)


def _wrong(role: str, optim: OptimConfig, strategy: Selected[Any]) -> Iterator[RequestError]:
    if optim.lr_warmup_steps and optim.lr_warmup_steps_ratio:
        yield ConfigError(
            f"{role}.optim.lr_warmup_steps_ratio", f"is set beside {role}.optim.lr_warmup_steps: set one of them to 0"
        )
    registries, key = load_plugins().registries, f"{role}.optim.optimizer"
    try:
        schedule = registries.schedules.select(optim.lr_scheduler_type, f"{role}.optim.lr_scheduler_type")
        optimizer = registries.optimizers.select(optim.optimizer, key)
    except RequestError as error:
        yield error
        return
    except CoreRLError as error:
        yield ConfigError(key, str(error))
        return
    for each in (schedule, optimizer):
        if isinstance(each, UntrustedSelection):
            yield each.error
    name, facts = optimizer.entry.name, strategy.entry.facts
    if strategy.entry.name == "megatron" and name != "adamw":
        yield ConfigError(
            key, f"'{name}' is not for megatron, which has AdamW alone: use adamw, or strategy fsdp or torch"
        )
    elif strategy.entry.name == "megatron" and getattr(optimizer.options, "offload_fraction", False):
        yield ConfigError(
            f"{key}.offload_fraction",
            "is not for megatron: use its option optimizer_offload, or strategy fsdp or torch",
        )
    elif getattr(facts, "distributed", False) and not optimizer.entry.facts.sharded:
        yield ConfigError(key, f"'{name}' does not share its state over ranks: use adamw, or {role}.strategy=torch")
