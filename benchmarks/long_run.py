"""A week in small: thousands of steps of a stub of a model, with a checkpoint every hundred; memory and open files.

Memory is that of the process (RSS), the mean over the middle tenth of the steps and over the last tenth::

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

PAGE = os.sysconf("SC_PAGE_SIZE")

@hookimpl
def step_ended(step):
    if step % 10 == 0:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
        with open({path!r}, "a") as file:
            file.write(f"{{step}} {{resident}} {{len(os.listdir('/proc/self/fd'))}}\\n")
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
    tenth = max(1, len(rows) // 10)
    middle, last = rows[len(rows) // 2 :][:tenth], rows[-tenth:]
    before, after = (statistics.mean(row[1] for row in part) for part in (middle, last))
    files = sorted({row[2] for row in rows[len(rows) // 2 :]})
    report = {
        "steps": arguments.steps,
        "seconds": round(seconds, 1),
        "memory_mib": [round(value / 2**20, 1) for value in (before, after)],
        "growth": round(after / before - 1, 5),
        "open_files": files,
    }
    print(f"steps {arguments.steps} in {seconds:.0f} s; memory {before / 2**20:.1f} -> {after / 2**20:.1f} MiB")
    print(f"growth over the last half {report['growth']:.2%} (limit {LIMIT:.0%}); open files {files}")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
