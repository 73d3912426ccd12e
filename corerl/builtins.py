"""What the core supplies by itself, registered like any plugin's parts."""

from corerl.hookspecs import Register, hookimpl
from corerl.registry.runtimes import RuntimeFactory
from corerl.registry.trackers import TrackerFactory


@hookimpl
def register_runtimes(register: Register[RuntimeFactory]) -> None:
    register("local", "corerl.runtime.local:LocalRuntime", summary="all workers in this process")


@hookimpl
def register_trackers(register: Register[TrackerFactory]) -> None:
    register("console", "corerl.telemetry.console:ConsoleTracker", summary="a line a step, and a live progress line")
