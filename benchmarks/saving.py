"""What a save after every step costs ``examples/hasty-teacher``, written in the background.

In one training, after each step a checkpoint is saved or not, in turns (``turns.py``). A turn is the time from the end
of one step to the end of the next: it has in it the copy, which the run waits for, and what writing takes from the next
step::

    python benchmarks/saving.py
"""

import argparse
import contextlib
import json
import statistics
import tempfile
from dataclasses import asdict
from pathlib import Path

from turns import Turns, print_costs

from corerl.cli.common import load_train_config
from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics
from corerl.trainer.loop import Trainer

LIMIT = 0.05
CONFIG = Path(__file__).parent.parent / "examples" / "hasty-teacher" / "config.yaml"
DATA = "--operations + --min-operand 10 --max-operand 99 --train-size 4000"
SHAPE = "--vocab-size 320 --hidden-size 64 --layers 2 --heads 4 --kv-heads 4 --intermediate-size 256 --max-positions 64"
SAVE_FREQ = 1
OVERRIDES = [
    "model.path=model",
    "data.train_files=[data/train.parquet]",
    "data.val_files=[]",
    "trainer.test_freq=-1",
    "trainer.max_ckpt_to_keep=2",
    f"trainer.save_freq={SAVE_FREQ}",
]


def train_in_turns(turns: Turns) -> list[float]:
    """The training, in this process; the seconds for which each step waited for its save."""
    from corerl.trainer.build import train
    from corerl.trainer.plan import make_plan

    def is_due(self: Trainer, frequency: int) -> bool:
        return frequency == SAVE_FREQ and turns.next() == "saving"

    Trainer.is_due = is_due  # type: ignore[method-assign]
    train(make_plan(*load_train_config(CONFIG, [*OVERRIDES, f"trainer.total_training_steps={turns.steps}"], [])))
    [metrics] = Path("runs").glob("*/*/metrics.jsonl")
    return [record["timing_s/save"] for record in read_metrics(metrics) if "timing_s/save" in record]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    turns = Turns(["without", "saving"], arguments.rounds)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(stack.enter_context(tempfile.TemporaryDirectory())))
        log = stack.enter_context(Path("output.log").open("w"))
        stack.enter_context(contextlib.redirect_stdout(log))
        stack.enter_context(contextlib.redirect_stderr(log))
        assert run(["prepare", "arithmetic", "--out", "data", *DATA.split()]) == 0
        assert run(["tiny-model", "--out", "model", "--corpus", "data/train.parquet", *SHAPE.split()]) == 0
        waited = statistics.median(train_in_turns(turns))
    costs = turns.costs()
    print_costs(costs, LIMIT)
    print(f"a step waits {1000 * waited:.1f} ms for its save")
    report = {"benchmark": "saving", "save_s": waited, "cost": {name: asdict(cost) for name, cost in costs.items()}}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
