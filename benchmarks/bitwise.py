"""The cost of ``trainer.bitwise`` on the model of ``examples/hasty-teacher``: seconds of its parts, smallest of all.

After ``sh examples/hasty-teacher/run.sh``, from the root of the repository::

    python benchmarks/bitwise.py
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS = 8
PARTS = ("timing_s/gen", "timing_s/old_log_prob", "timing_s/update_actor", "timing_s/step")


def seconds(strategy: str, bitwise: bool) -> list[float]:
    """The smallest time of each of ``PARTS`` over ``STEPS`` steps on one thread."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            f"actor.strategy={strategy}",
            f"trainer.bitwise={str(bitwise).lower()}",
            f"trainer.total_training_steps={STEPS}",
            "data.val_files=[]",
            "trainer.test_freq=-1",
            "trainer.save_huggingface=never",
            "tracking.loggers=[]",
            f"trainer.output_dir={folder}",
        ]
        command = ["corerl", "train", "examples/hasty-teacher/config.yaml", *overrides]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
        [file] = Path(folder).glob("*/*/metrics.jsonl")
        records = [json.loads(line) for line in file.read_text().splitlines()]
    return [min(each[part] for each in records if part in each) for part in PARTS]


for strategy in ("torch", "fsdp"):
    plain, exact = seconds(strategy, bitwise=False), seconds(strategy, bitwise=True)
    for part, before, after in zip(PARTS, plain, exact, strict=True):
        print(f"{strategy} {part}: {before:.3f} s, bitwise {after:.3f} s, {after / before:.2f} times", flush=True)
