"""The commands ``simulate`` and ``profile``."""

from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.commands import Command


@hookimpl
def register_commands(register: "Register[Command]") -> None:
    register(
        "simulate",
        "corerl_simulate.command:simulate",
        summary="Simulate steps on N GPUs: the fastest layout.",
    )
    register(
        "profile",
        "corerl_simulate.profile_command:profile",
        summary="Measure this machine for corerl simulate.",
    )
