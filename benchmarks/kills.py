"""Kills of a run at random instants: metrics and final weights beside those of the same run that was not killed.

PPO with a critic and an adaptive KL penalty on a model of a few thousand parameters, a checkpoint after every step. A
life is killed by SIGKILL at an instant drawn from its first ``--longest`` seconds, start and loading included, and the
same command begins the next, until ``--kills`` have been killed; the last life ends by itself::

    python benchmarks/kills.py --kills 100
"""

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from corerl.cli.main import run
from corerl.testing.lives import Life, Outcome

SIZES = ["--operations", "+", "--max-operand", "9", "--train-size", "40", "--test-size", "8", "--sft-size", "40"]
SHAPE = ["--vocab-size", "300", "--hidden-size", "16", "--layers", "1", "--heads", "2", "--kv-heads", "1"]
CONFIG = """
model: {{path: {folder}/model}}
data: {{train_files: [{folder}/data/train.parquet], val_files: [{folder}/data/test.parquet],
       train_batch_size: 8, max_prompt_length: 64, max_response_length: 8}}
algorithm: {{adv_estimator: gae, use_kl_in_reward: true, kl_ctrl: {{type: adaptive, horizon: 1000}}}}
actor: {{device: cpu, ppo_mini_batch_size: 4, optim: {{lr: 1e-2, lr_warmup_steps: 3, lr_scheduler_type: cosine}}}}
rollout: {{n: 4}}
reward: {{scorer: {folder}/reward.py:score}}
trainer: {{total_training_steps: {steps}, test_freq: 5, save_freq: 1, max_ckpt_to_keep: 3, output_dir: {folder}/runs}}
"""
REWARD = "def score(response, ground_truth, data_source, extra_info):\n    return float(len(response) % 2)\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--steps", type=int, default=200, help="of the whole run")
    parser.add_argument("--longest", type=float, default=5.0, help="seconds that a life may have")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = material(folder, arguments.steps)
        start = time.perf_counter()
        assert Life(config, ["tracking.experiment_name=straight"], folder / "straight.log").end(3600) == 0
        straight_seconds = time.perf_counter() - start
        kills, reached = 0, Counter[int]()
        overrides = ["tracking.experiment_name=killed"]
        while kills < arguments.kills:
            life = Life(config, overrides, folder / "killed.log")
            if life.is_over(chance.uniform(0, arguments.longest)):
                assert life.end() == 0, (folder / "killed.log").read_text()[-2000:]
                raise SystemExit(f"the run was done after {kills} kills: take more --steps")
            life.kill()
            kills += 1
            reached[newest_step(folder / "runs" / "killed")] += 1
        assert Life(config, overrides, folder / "killed.log").end(3600) == 0
        [whole] = (folder / "runs" / "straight").iterdir()
        killed = max((folder / "runs" / "killed").iterdir())
        expected, found = Outcome.of(whole), Outcome.of(killed)
        report = {
            "kills": kills,
            "steps": arguments.steps,
            "steps_at_a_kill": len(reached),
            "metrics_equal": expected.metrics == found.metrics,
            "files_equal": expected.files == found.files,
            "half_written": len(list(killed.rglob(".*.tmp"))),
            "damaged": (folder / "killed.log").read_text().count(" is damaged "),
            "straight_seconds": round(straight_seconds, 1),
        }
    for name, value in report.items():
        print(f"{name:<18} {value}")
    print(json.dumps(report))
    raise SystemExit(0 if report["metrics_equal"] and report["files_equal"] else 1)


def material(folder: Path, steps: int) -> Path:
    """Data, model and scorer; the config's path."""
    assert run(["prepare", "arithmetic", "--out", str(folder / "data"), *SIZES]) == 0
    corpus = str(folder / "data" / "train.parquet")
    assert run(["tiny-model", "--out", str(folder / "model"), "--corpus", corpus, *SHAPE]) == 0
    (folder / "reward.py").write_text(REWARD)
    (folder / "config.yaml").write_text(CONFIG.format(folder=folder, steps=steps))
    return folder / "config.yaml"


def newest_step(runs: Path) -> int:
    """Of all checkpoints of all runs in a folder; 0 when there is none."""
    pointers = runs.glob("*/checkpoints/latest")
    return max((int(pointer.read_text().removeprefix("global_step_")) for pointer in pointers), default=0)


if __name__ == "__main__":
    main()
