"""What the core supplies by itself, registered like any plugin's parts."""

from corerl.hookspecs import Register, hookimpl
from corerl.registry.commands import Command
from corerl.registry.runtimes import RuntimeFactory
from corerl.registry.trackers import TrackerFactory


@hookimpl
def register_runtimes(register: Register[RuntimeFactory]) -> None:
    register("local", "corerl.runtime.local:LocalRuntime", summary="all workers in this process")


@hookimpl
def register_trackers(register: Register[TrackerFactory]) -> None:
    register("console", "corerl.telemetry.console:ConsoleTracker", summary="a live view on a terminal, otherwise lines")


@hookimpl
def register_commands(register: Register[Command]) -> None:
    register("train", "corerl.cli.train:train", summary="Train a model by reinforcement learning.")
    register("check", "corerl.cli.check:check", summary="Find the errors of a training before it starts.")
    register("doctor", "corerl.cli.doctor:doctor", summary="Describe this environment, for a bug report.")
    register("sft", "corerl.cli.sft:sft", summary="Fine-tune a model on chats: a supervised cold start.")
    register("prepare", "corerl.cli.prepare:prepare", summary="Write training files from a published data set.")
    register("generate", "corerl.cli.generate:generate", summary="Sample responses to the prompts of a file.")
    register("score", "corerl.cli.score:score", summary="Score responses again, and compare with labels.")
    register("eval", "corerl.cli.eval:evaluate", summary="Print mean@n, pass@k, maj@k and best@k of responses.")
    register("data.inspect", "corerl.cli.data:inspect", summary="Print the contents and the defects of data files.")
    register("export", "corerl.cli.export:export", summary="Convert a checkpoint to a Hugging Face model folder.")
    register("report", "corerl.cli.report:report", summary="Write one page of runs: curves, timing, samples, config.")
    register("runs", "corerl.cli.runs:runs", summary="List runs: state, step, last reward, age.")
    register("plugins.list", "corerl.cli.plugins:list_", summary="List plugins and every registered name by kind.")
    register("plugins.show", "corerl.cli.plugins:show", summary="Show a plugin, or everything about a name.")
    register("config", "corerl.cli.config:config", summary="Show a training configuration with the help of each key.")
