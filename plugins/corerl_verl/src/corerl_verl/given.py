"""verl's keys that a command gives, and their engine."""

import re
from collections.abc import Mapping
from typing import Any

from corerl_verl import hydra
from corerl_verl.conversion import Conversion, shown
from corerl_verl.keys import PREFIX
from corerl_verl.versions import Effective, defaults, full

_UNSET = re.compile(r"\$\{?[A-Za-z_]\w*|\$\(")
_TEXTS = re.compile(r"(path|_files|project_name|experiment_name|_dir)$")
"""keys whose text may hold a variable"""
_KNOWN_NAMES = re.compile(r"(ppo|dapo|fully_async|one_step_off|entropy|fapo)\w*(trainer)?|rollout_corr\w*")
_ALONE = ("val_generations_to_log_to_wandb",)
"""keys of old versions without a section"""
_ENGINE_GROUPS = {"dp": "fsdp", "fsdp": "fsdp", "megatron": "megatron"}


def engine_of(arguments: hydra.Arguments, module: str) -> tuple[str, list[tuple[str, str, Any]]]:
    """verl's engine from the config's name, the groups or the strategy; and remarks."""
    remarks: list[tuple[str, str, Any]] = []
    name = arguments.name or ""
    megatron = "megatron" in name or "megatron" in module
    if name and not _KNOWN_NAMES.fullmatch(name):
        remarks.append(
            (f"--config-name={name}", "the values of this file are not known here: give the file, too", "changed")
        )
    for group, choice in arguments.groups.items():
        if group == "model_engine":
            megatron = choice == "megatron"
            if choice not in _ENGINE_GROUPS:
                remarks.append(
                    (f"{group}={choice}", f"CoreRL has no strategy '{choice}' yet; written as fsdp", "missing")
                )
        elif "@" in group or "/" in group or _is_choice(group, choice):
            megatron = megatron or "megatron" in str(choice)
            if not any(part in str(choice) for part in ("megatron", "dp_", "fsdp", "rollout", "hf_model", "legacy")):
                remarks.append(
                    (f"{group}={choice}", "a group of the user's own: its values are not known here", "changed")
                )
    strategy = arguments.values.get(f"{PREFIX}actor.strategy")
    if strategy in ("megatron", "fsdp", "fsdp2"):
        asked = megatron or arguments.groups.get("model_engine") is not None
        if asked and megatron != (strategy == "megatron"):
            reason = "contradicts the command's config or model_engine, whose keys are those of another engine; written"
            remarks.append((f"actor.strategy={strategy}", reason, "changed"))
        megatron = strategy == "megatron"
    return "megatron" if megatron else "fsdp", remarks


def given_by(arguments: hydra.Arguments, kind: str) -> dict[str, Any]:
    """verl's key, without its prefix, -> value; mappings of verl's own sections by key."""
    given: dict[str, Any] = {}
    groups = {
        name: value
        for name, value in arguments.groups.items()
        if not re.search("[@/]|^model_engine$", name) and not _is_choice(name, value)
    }
    for key, value in [*groups.items(), *arguments.values.items()]:
        entries = {key: value}
        if isinstance(value, Mapping) and value and _is_section(key, kind):
            entries = hydra.flat(value, key)
        for name, entry in entries.items():
            given.pop(name.removeprefix(PREFIX), None)
            given[name.removeprefix(PREFIX)] = entry
    return given | {key.removeprefix(PREFIX): None for key in arguments.deleted}


def _is_choice(group: str, choice: Any) -> bool:
    """Whether a key without a dot selects a file of the user's: ``+experiment=name``, ``actor=name``."""
    known = full(group) in defaults("0.9", "fsdp") or group in _ALONE
    return isinstance(choice, str) and not known


def truth(effective: Effective, key: str, value: Any) -> Any:
    """0 and 1 of a key that is true or false in verl."""
    return bool(value) if isinstance(effective.default(key), bool) and value in (0, 1) else value


def leave_out_sections(conversion: Conversion) -> None:
    """A section that is no mapping: verl has no values below it."""
    for key, value in list(conversion.given.items()):
        if not isinstance(value, Mapping) and _is_section(key, conversion.effective.engine):
            reason = "is a section of verl and takes a mapping: verl's defaults below it are written"
            conversion.drop(key, reason, "changed")


def _is_section(key: str, kind: str) -> bool:
    known = defaults("0.9", kind)
    return key not in known and any(other.startswith(f"{full(key)}.") for other in known)


def leave_out_unset(conversion: Conversion) -> None:
    """Values with a variable that is set nowhere: a path or a name keeps it, another value is left out."""
    for key, value in list(conversion.given.items()):
        parts = value if isinstance(value, list) else [value]
        if not any(isinstance(part, str) and _UNSET.search(part) for part in parts):
            continue
        default = conversion.effective.default(key)
        if not _TEXTS.search(key) and default is not None:
            conversion.drop(key, "has a variable that is set nowhere; verl's default is written", "changed")
            conversion.effective.forget(key)
        else:
            conversion.remark(
                shown(key, value), "has a variable that is set nowhere: set it before, or write the value"
            )
