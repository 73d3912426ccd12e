"""Trackers: what they cost a step, on the quickstart.

The same training runs without a tracker and with each of ``--trackers``, in turns, in a temporary folder. The time of a
step is that from one end of a step to the next, so that writing the metrics is in it, and whatever a tracker's thread
and its processes take from the training. Compared are the medians of all steps but the first ones.

    python benchmarks/trackers.py --trackers tensorboard 'wandb offline' --rounds 5
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

LIMIT = 0.01
"""largest share of a step"""

LEFT_OUT = 5
"""first steps of a run, in which a tracker is still being opened"""

CLOCK = """
import time
from corerl import hookimpl

@hookimpl
def step_ended(run, step):
    with (run.folder / "clock").open("a") as file:
        print(time.perf_counter(), file=file)
"""

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
"""


def corerl(folder: Path, *arguments: str) -> None:
    """Run a command; its output goes to a file."""
    with (folder / "output.log").open("a") as log:
        subprocess.run(
            [sys.executable, "-m", "corerl", *arguments],
            cwd=folder,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TRACKIO_DIR": str(folder / "trackio")},
            stdout=log,
            stderr=log,
            check=True,
        )


def seconds_of_steps(folder: Path, name: str, loggers: str, steps: int) -> list[float]:
    """Run a training; the time of each step but the first ``LEFT_OUT``."""
    overrides = [f"trainer.total_training_steps={steps}", f"tracking={{loggers: [{loggers}], experiment_name: {name}}}"]
    corerl(folder, "train", "config.yaml", *overrides, "--plugin", "clock.py")
    clock = sorted((folder / "runs" / name).glob("*/clock"))[-1]
    times = [float(line) for line in clock.read_text().split()]
    return [end - start for start, end in pairwise(times)][LEFT_OUT:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trackers", nargs="+", default=["console", "tensorboard"], choices=list(LOGGERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    times: dict[str, list[float]] = {"none": [], **{name: [] for name in arguments.trackers}}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "clock.py").write_text(CLOCK)
        (folder / "config.yaml").write_text(CONFIG)
        corerl(folder, "prepare", "arithmetic", "--out", "data", *DATA.split())
        corerl(folder, "tiny-model", "--out", "model", "--corpus", "data/sft.parquet", *SHAPE.split())
        for round_ in range(arguments.rounds):
            for number, name in enumerate(times):
                loggers = LOGGERS.get(name, "")
                times[name] += seconds_of_steps(folder, f"run-{round_}-{number}", loggers, arguments.steps)
    base = statistics.median(times["none"])
    print(f"{'tracker':<16} {'ms a step':>10} {'cost':>8}   limit {LIMIT:.0%}")
    costs = {}
    for name, values in times.items():
        median = statistics.median(values)
        costs[name] = median / base - 1
        print(f"{name:<16} {1000 * median:10.1f} {costs[name]:8.2%}   {'ok' if costs[name] <= LIMIT else 'TOO MUCH'}")
    print(json.dumps({"benchmark": "trackers", "step_s": base, "cost": costs}))


if __name__ == "__main__":
    main()
