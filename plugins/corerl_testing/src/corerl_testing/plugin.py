"""The commands of the conformance kit and of the templates."""

from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.commands import Command


@hookimpl
def register_commands(register: "Register[Command]") -> None:
    register("new", "corerl_testing.new:new", summary="Start a plugin from a template.")
    register("plugins.check", "corerl_testing.command:check", summary="Check parts against the contract of their kind.")
