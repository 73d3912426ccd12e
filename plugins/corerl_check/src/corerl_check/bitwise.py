"""``trainer.bitwise``: sets the option ``bitwise`` of engine and strategy, and names the parts that have none."""

from collections.abc import Iterator
from typing import Any

from corerl.config.load import assign
from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError
from corerl.registry import Selected
from corerl.registry.parts import Parts
from corerl_check.aliases import MISSING, at

KEY = "trainer.bitwise"

PARTS = (
    ("rollout.options", "hf", ("hf",)),
    ("actor.strategy", "torch", ("torch", "fsdp")),
    ("critic.strategy", "", ("torch", "fsdp")),
)
"""section of the option, default of the name, names of parts with the option"""


def with_options(values: dict[str, Any]) -> dict[str, Any]:
    """Nested plain values of a config, with the options that ``trainer.bitwise: true`` means; in place."""
    if at(values, KEY) is not True:
        return values
    for section, default, names in PARTS:
        part = at(values, "rollout.name" if section == "rollout.options" else section)
        name = part.get("name") if isinstance(part, dict) else part
        option = f"{section}.bitwise"
        if (default if name in (MISSING, None) else name) in names and at(values, option) is MISSING:
            assign(TrainConfig, values, option.split("."), True)
    return values


def violations(config: TrainConfig, parts: Parts) -> Iterator[ConfigError]:
    """An error for every part that cannot give equal bits."""
    if not config.trainer.bitwise:
        return
    from corerl.models import resolve_device
    from corerl_torch import bitwise

    selected: list[tuple[str, Selected[Any]]] = [
        ("rollout.name", parts.rollout_backend),
        ("actor.strategy", parts.strategy),
    ]
    if parts.critic_strategy is not None:
        selected.append(("critic.strategy", parts.critic_strategy))
    for key, part in selected:
        if getattr(part.options, "bitwise", None) is not True:
            yield ConfigError(
                KEY,
                f"{key}={part.entry.name} cannot give bit-equal log-probs, or its option bitwise is off: "
                "rollout.name=hf with actor.strategy=torch or fsdp can, on the CPU",
            )
    if config.rollout.record:
        yield ConfigError(KEY, f"log-probs with rollout.record={config.rollout.record} have other bits: record nothing")
    try:
        bitwise.check(config.model, resolve_device(config.actor.device))
    except ConfigError as error:
        yield error
