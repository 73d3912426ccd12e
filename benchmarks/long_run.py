"""A week in small: thousands of steps of a stub of a model, with a checkpoint every hundred; memory and open files.

Memory is what the process has taken for itself, swapped out or not: the mean over the middle tenth of the steps and
over the last tenth. Pages of files that it has mapped, torch's libraries above all, are shown beside it and not judged:
the kernel drops them when it likes and reads them again::

    python benchmarks/long_run.py --steps 20000
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from corerl.cli.common import load_train_config
from corerl.cli.main import run

LIMIT = 0.01
SIZES = ["--operations", "+", "--max-operand", "9", "--train-size", "40", "--test-size", "8", "--sft-size", "40"]
SHAPE = ["--vocab-size", "300", "--hidden-size", "16", "--layers", "1", "--heads", "2", "--kv-heads", "1"]
REWARD = "def score(response, ground_truth, data_source, extra_info):\n    return float(len(response) % 2)\n"
CONFIG = """
model: {{path: {folder}/model}}
data: {{train_files: [{folder}/data/train.parquet], val_files: [{folder}/data/test.parquet],
       train_batch_size: 2, max_prompt_length: 64, max_response_length: 2}}
actor: {{device: cpu, ppo_mini_batch_size: 2, optim: {{lr: 1e-4}}}}
rollout: {{n: 2}}
reward: {{scorer: {folder}/reward.py:score}}
trainer: {{total_training_steps: {steps}, test_freq: 500, save_freq: 100, max_ckpt_to_keep: 2, log_rollouts_freq: 100,
          keep_best: critic/score/mean, output_dir: {folder}/runs}}
tracking: {{loggers: []}}
"""
PROBE = """
import os
from pathlib import Path

from corerl import hookimpl

@hookimpl
def step_ended(step):
    if step % 10 == 0:
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        own, files = (sum(int(lines[name].split()[0]) for name in names)
                      for names in (("RssAnon", "RssShmem", "VmSwap"), ("RssFile",)))
        with open({path!r}, "a") as file:
            file.write(f"{{own}} {{files}} {{len(os.listdir('/proc/self/fd'))}}\\n")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        assert run(["prepare", "arithmetic", "--out", str(folder / "data"), *SIZES]) == 0
        corpus = str(folder / "data" / "train.parquet")
        assert run(["tiny-model", "--out", str(folder / "model"), "--corpus", corpus, *SHAPE]) == 0
        (folder / "reward.py").write_text(REWARD)
        (folder / "probe.py").write_text(PROBE.format(path=str(folder / "probe.txt")))
        (folder / "config.yaml").write_text(CONFIG.format(folder=folder, steps=arguments.steps))
        from corerl.trainer.build import train
        from corerl.trainer.plan import make_plan

        start = time.perf_counter()
        train(make_plan(*load_train_config(folder / "config.yaml", [], [str(folder / "probe.py")])))
        seconds = time.perf_counter() - start
        rows = [[int(word) for word in line.split()] for line in (folder / "probe.txt").read_text().splitlines()]
    half = rows[len(rows) // 2 :]
    tenth = max(1, len(rows) // 10)
    parts = half[:tenth], half[-tenth:]
    own, files = ([statistics.mean(row[column] / 1024 for row in part) for part in parts] for column in (0, 1))
    growth = own[1] / own[0] - 1
    open_files = sorted({row[2] for row in half})
    print(f"steps {arguments.steps} in {seconds:.0f} s; growth over the last half {growth:.2%} (limit {LIMIT:.0%})")
    print("own memory {:.2f} -> {:.2f} MiB, pages of files {:.2f} -> {:.2f} MiB".format(*own, *files))
    report = {
        "steps": arguments.steps,
        "seconds": round(seconds, 1),
        "memory_mib": [round(value, 2) for value in own],
        "growth": round(growth, 5),
        "file_pages_mib": [round(value, 2) for value in files],
        "open_files": open_files,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
