"""``trainer.bitwise``: sets the option ``bitwise`` of engine and strategy, and names the parts that have none."""

from collections.abc import Iterator
from typing import Any

from corerl.config.load import assign
from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError
from corerl.registry import Selected
from corerl.registry.parts import Parts
from corerl_check.aliases import MISSING, at
from corerl_check.contract import QuantizedOptions

KEY = "trainer.bitwise"

PARTS = (
    ("rollout.options", "hf", ("hf", "vllm")),
    ("actor.strategy", "torch", ("torch", "fsdp")),
    ("ref.strategy", "", ("torch", "fsdp")),
    ("critic.strategy", "", ("torch", "fsdp")),
)
"""section of the option, default of the name, names of parts with the option"""

ON_GPU = ("vllm", "fsdp")
"""parts that compute on a GPU as they do on the CPU: by operations of their own, in the dtype of ``model.dtype``"""


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
    own = (("ref.strategy", parts.ref_strategy), ("critic.strategy", parts.critic_strategy))
    selected += [(key, part) for key, part in own if part is not None]
    device = resolve_device(config.actor.device)
    for key, part in selected:
        off = getattr(part.options, "bitwise", None) is not True
        if off or (device == "cuda" and part.entry.name not in ON_GPU):
            yield ConfigError(
                KEY,
                f"{key}={part.entry.name} cannot give bit-equal log-probs on {device}, or its option bitwise is off: "
                "on the CPU rollout.name=hf or vllm with actor.strategy=torch or fsdp can, on a GPU vllm with fsdp",
            )
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "data_parallel_size"):
        if (split := getattr(config.rollout, name)) > 1:
            yield ConfigError(KEY, f"rollout.{name}={split} computes in other parts: set 1")
    options = parts.rollout_backend.options
    if isinstance(options, QuantizedOptions) and options.quantization != "none":
        yield ConfigError(KEY, f"rollout.options.quantization={options.quantization} rounds the engine's weights")
    if config.rollout.record:
        yield ConfigError(KEY, f"log-probs with rollout.record={config.rollout.record} have other bits: record nothing")
    try:
        bitwise.check(config.model, device)
    except ConfigError as error:
        yield error
