"""What the core supplies by itself, registered like any plugin's parts."""

from typing import TYPE_CHECKING

from corerl.hookspecs import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.commands import Command
    from corerl.contracts.runtimes import RuntimeFactory
    from corerl.contracts.trackers import TrackerFactory


@hookimpl
def register_runtimes(register: "Register[RuntimeFactory]") -> None:
    register("local", "corerl.runtime.local:LocalRuntime", summary="all workers in this process")


@hookimpl
def register_trackers(register: "Register[TrackerFactory]") -> None:
    register("console", "corerl.telemetry.console:ConsoleTracker", summary="a live view on a terminal, otherwise lines")


@hookimpl
def register_commands(register: "Register[Command]") -> None:
    register("train", "corerl.cli.train:train", summary="Train a model by reinforcement learning.")
    register("config.show", "corerl.cli.config:show", summary="Show a training configuration with help of each key.")
    register("plugins.list", "corerl.cli.plugins:list_", summary="List plugins and every registered name by kind.")
    register("plugins.show", "corerl.cli.plugins:show", summary="Show a plugin, or everything about a name.")
    register("plugins.trace", "corerl.cli.plugins:trace", summary="Show the hooks of plugins, and times of import.")
