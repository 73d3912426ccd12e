"""Trackers: what they cost a step, as a share of that of ``examples/hasty-teacher``.

One training has all of ``--trackers`` open; each step's metrics go to one of them, or to none (``turns.py``). A turn is
the time from one record to the next, so that passing on the metrics is in it, and whatever a tracker's thread and its
processes take from the next step. What a tracker takes in steps that it is told nothing of is in nobody's turn.

A record is the same work however long the step, so the turns are steps of an eighth of its batch: more of
them, with less noise in each. The whole step, of which the cost is a share, is measured beforehand::

    python benchmarks/trackers.py --trackers tensorboard 'wandb offline'
"""

import argparse
import contextlib
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from turns import Turns, print_costs

from corerl.cli.common import load_train_config
from corerl.cli.main import run
from corerl.contracts.trackers import Tracker
from corerl.telemetry.metrics_log import MetricsLog, read_metrics

LIMIT = 0.01
"""largest share of a step"""

LOGGERS = {
    "console": "console",
    "tensorboard": "tensorboard",
    "wandb offline": "{name: wandb, mode: offline}",
    "swanlab offline": "{name: swanlab, mode: offline}",
    "mlflow": "mlflow",
    "clearml offline": "{name: clearml, offline: true}",
    "trackio": "trackio",
}

SHAPE = "--vocab-size 320 --hidden-size 64 --layers 2 --heads 4 --kv-heads 4 --intermediate-size 256 --max-positions 64"
DATA = "--operations + --min-operand 10 --max-operand 99 --train-size 4000 --test-size 400 --sft-size 7000"

CONFIG = """
model: {path: model}
data: {train_files: [data/train.parquet], max_prompt_length: 32, max_response_length: 8}
actor: {device: cpu, optim: {lr: 5e-4}, use_kl_loss: true}
trainer: {test_freq: -1, save_freq: -1}
"""
EXAMPLE = ["data.train_batch_size=64", "actor.ppo_mini_batch_size=32", "rollout.n=16"]
TURN = ["data.train_batch_size=16", "actor.ppo_mini_batch_size=8", "rollout.n=8"]


def train(steps: int, loggers: str, *overrides: str) -> None:
    """In this process."""
    from corerl.trainer import build
    from corerl.trainer.plan import make_plan

    common = [f"trainer.total_training_steps={steps}", f"tracking.loggers=[{loggers}]"]
    build.train(make_plan(*load_train_config(Path("config.yaml"), [*common, *overrides], [])))


def example_step(steps: int = 12) -> float:
    """Seconds of the step of ``examples/hasty-teacher``, by itself."""
    train(steps, "", "tracking.experiment_name=hasty-teacher", *EXAMPLE)
    [path] = Path("runs", "hasty-teacher").glob("*/metrics.jsonl")
    return statistics.median(record["timing_s/step"] for record in read_metrics(path)[2:])


def train_in_turns(turns: Turns, trackers: list[str]) -> None:
    """The training whose steps are the turns."""

    def pass_on(self: MetricsLog, call: Callable[[Tracker], None]) -> None:
        turn = turns.next()
        for thread, name in zip(self._threads, trackers, strict=True):
            if name == turn:
                thread.call(call)

    MetricsLog._pass_on = pass_on  # type: ignore[method-assign]
    train(turns.steps, ", ".join(LOGGERS[name] for name in trackers), *TURN)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trackers", nargs="+", default=["tensorboard", "wandb offline"], choices=list(LOGGERS))
    parser.add_argument("--rounds", type=int, default=250)
    arguments = parser.parse_args()
    turns = Turns(["none", *arguments.trackers], arguments.rounds)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(stack.enter_context(tempfile.TemporaryDirectory())))
        os.environ |= {"HF_HUB_OFFLINE": "1", "TRACKIO_DIR": str(Path("trackio").absolute())}
        Path("config.yaml").write_text(CONFIG)
        log = stack.enter_context(Path("output.log").open("w"))
        stack.enter_context(contextlib.redirect_stdout(log))
        stack.enter_context(contextlib.redirect_stderr(log))
        assert run(["prepare", "arithmetic", "--out", "data", *DATA.split()]) == 0
        assert run(["tiny-model", "--out", "model", "--corpus", "data/sft.parquet", *SHAPE.split()]) == 0
        step_s = example_step()
        train_in_turns(turns, arguments.trackers)
    costs = turns.costs(step_s)
    print(f"a step of examples/hasty-teacher: {1000 * step_s:.0f} ms")
    print_costs(costs, LIMIT)
    report = {"step_s": step_s, "cost": {name: asdict(cost) for name, cost in costs.items()}}
    print(json.dumps({"benchmark": "trackers", **report}))


if __name__ == "__main__":
    main()
