"""Trackers: what they cost a step, on the quickstart.

One training has all of ``--trackers`` open; each step's metrics go to one of them, or to none (``turns.py``). A turn is
the time from one record to the next, so that passing on the metrics is in it, and whatever a tracker's thread and its
processes take from the next step. What a tracker takes in steps that it is told nothing of is in nobody's turn::

    python benchmarks/trackers.py --trackers tensorboard 'wandb offline'
"""

import argparse
import contextlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from turns import HEAD, Turns

from corerl.cli.common import load_train_config
from corerl.cli.main import run
from corerl.registry.trackers import Tracker
from corerl.telemetry.metrics_log import MetricsLog

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
data: {train_files: [data/train.parquet], train_batch_size: 64, max_prompt_length: 32, max_response_length: 8}
actor: {device: cpu, optim: {lr: 5e-4}, ppo_mini_batch_size: 32, use_kl_loss: true}
rollout: {n: 16}
trainer: {test_freq: -1, save_freq: -1}
"""


def train_in_turns(folder: Path, turns: Turns, trackers: list[str]) -> None:
    """The training, in this process."""
    from corerl.trainer.build import train
    from corerl.trainer.plan import make_plan

    def pass_on(self: MetricsLog, call: Callable[[Tracker], None]) -> None:
        turn = turns.next()
        for thread, name in zip(self._threads, trackers, strict=True):
            if name == turn:
                thread.call(call)

    MetricsLog._pass_on = pass_on  # type: ignore[method-assign]
    loggers = ", ".join(LOGGERS[name] for name in trackers)
    overrides = [f"trainer.total_training_steps={turns.steps}", f"tracking.loggers=[{loggers}]"]
    train(make_plan(*load_train_config(folder / "config.yaml", overrides, [])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trackers", nargs="+", default=["tensorboard", "wandb offline"], choices=list(LOGGERS))
    parser.add_argument("--rounds", type=int, default=80)
    arguments = parser.parse_args()
    turns = Turns(["none", *arguments.trackers], arguments.rounds)
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        folder = Path(temporary)
        os.environ |= {"HF_HUB_OFFLINE": "1", "TRACKIO_DIR": str(folder / "trackio")}
        (folder / "config.yaml").write_text(CONFIG)
        with (folder / "output.log").open("w") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            assert run(["prepare", "arithmetic", "--out", "data", *DATA.split()]) == 0
            assert run(["tiny-model", "--out", "model", "--corpus", "data/sft.parquet", *SHAPE.split()]) == 0
            train_in_turns(folder, turns, arguments.trackers)
    costs = turns.costs()
    print(f"{HEAD}   limit {LIMIT:.0%}")
    for name, cost in costs.items():
        print(cost.row(name, LIMIT))
    print(json.dumps({"benchmark": "trackers", "cost": {name: asdict(cost) for name, cost in costs.items()}}))


if __name__ == "__main__":
    main()
