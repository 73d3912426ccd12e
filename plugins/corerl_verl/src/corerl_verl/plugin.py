"""verl's keys in a training config, and ``corerl config from-verl``."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.commands import Command


@hookimpl
def register_commands(register: "Register[Command]") -> None:
    register("config.from-verl", "corerl_verl.command:from_verl", summary="Convert a verl command to a config.")


@hookimpl
def config_aliases() -> Mapping[str, str]:
    from corerl_verl.keys import ALIASES

    return ALIASES


@hookimpl
def explain_config_key(key: str) -> str | None:
    from corerl_verl.keys import hint

    return hint(key)
