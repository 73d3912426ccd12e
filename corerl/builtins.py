"""What the core supplies by itself, registered like any plugin's parts."""

from typing import TYPE_CHECKING

from corerl.hookspecs import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.commands import Command
    from corerl.contracts.runtimes import RuntimeFactory


@hookimpl
def register_runtimes(register: "Register[RuntimeFactory]") -> None:
    register("local", "corerl.runtime.local:LocalRuntime", summary="all workers in this process")


@hookimpl
def register_commands(register: "Register[Command]") -> None:
    register("train", "corerl.cli.train:train", summary="Train a model by reinforcement learning.")
