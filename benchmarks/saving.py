"""What a save after every step costs the quickstart: seconds a step with ``trainer.save_freq=1`` and without.

The kinds of runs take turns in processes of their own; the medians over all their steps, but for the first two, are
compared. A step's time has in it ``timing_s/save``, which it waits for, and what writing takes from the steps beside
it::

    python benchmarks/saving.py
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from corerl.telemetry.metrics_log import read_metrics

ROOT = Path(__file__).parent.parent
LIMIT = 0.05
SIZES = ["--operations", "+", "--min-operand", "10", "--max-operand", "99"]
SHAPE = "--vocab-size 320 --hidden-size 64 --layers 2 --heads 4 --kv-heads 4 --intermediate-size 256 --max-positions 64"


def corerl(*arguments: str, folder: Path) -> None:
    program = str(Path(sys.executable).with_name("corerl"))
    subprocess.run([program, *arguments], check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def seconds(folder: Path, name: str, steps: int, *overrides: str) -> list[dict[str, float]]:
    """The records of a run's steps, but for the first two."""
    common = ["model.path=model", "data.train_files=[data/train.parquet]", "data.val_files=[]", "trainer.test_freq=-1"]
    length = f"trainer.total_training_steps={steps}"
    config = str(ROOT / "examples" / "quickstart" / "config.yaml")
    corerl("train", config, *common, length, f"tracking.experiment_name={name}", *overrides, folder=folder)
    newest = max((folder / "runs" / name).iterdir())
    return [record for record in read_metrics(newest / "metrics.jsonl") if 2 < record["step"] < steps]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    step: dict[str, list[float]] = {"without": [], "asynchronous": [], "waiting": []}
    saves: dict[str, list[float]] = {name: [] for name in step}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        corerl("prepare", "arithmetic", "--out", "data", *SIZES, "--train-size", "4000", folder=folder)
        corerl("tiny-model", "--out", "model", "--corpus", "data/train.parquet", *SHAPE.split(), folder=folder)
        kinds = {
            "without": ["trainer.save_freq=-1"],
            "asynchronous": ["trainer.save_freq=1", "trainer.max_ckpt_to_keep=2"],
            "waiting": ["trainer.save_freq=1", "trainer.max_ckpt_to_keep=2", "trainer.async_save=false"],
        }
        for number in range(arguments.rounds):
            for name, overrides in kinds.items():
                for record in seconds(folder, f"{name}-{number}", arguments.steps, *overrides):
                    saves[name].append(record.get("timing_s/save", 0.0))
                    step[name].append(record["timing_s/step"])
    medians = {name: statistics.median(values) for name, values in step.items()}
    report = {
        "step_s": {name: round(value, 4) for name, value in medians.items()},
        "save_s": {name: round(statistics.median(values), 4) for name, values in saves.items()},
        "cost": {name: round(value / medians["without"] - 1, 4) for name, value in medians.items()},
    }
    print(f"{'saving':<13} {'step s':>8} {'of it save s':>13} {'cost':>8}   limit {LIMIT:.0%}, asynchronous")
    for name in medians:
        print(f"{name:<13} {report['step_s'][name]:8.4f} {report['save_s'][name]:13.4f} {report['cost'][name]:8.1%}")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
