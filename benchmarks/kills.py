"""Kills of a run at random instants: metrics and final weights beside those of the same run that was not killed.

PPO with a critic and an adaptive KL penalty on a model of a few thousand parameters, a checkpoint after every step. A
life is killed by SIGKILL at an instant drawn from its first ``--longest`` seconds, start and loading included, and the
same command begins the next, until ``--kills`` have been killed. What comes to the end of the run is compared, and the
next run begins::

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
from corerl_testing.lives import Life, Outcome

SIZES = ["--operations", "+", "--max-operand", "9", "--train-size", "40", "--test-size", "8", "--sft-size", "40"]
SHAPE = ["--vocab-size", "300", "--hidden-size", "16", "--layers", "1", "--heads", "2", "--kv-heads", "1"]
CONFIG = """
model: {{path: {folder}/model}}
data: {{train_files: [{folder}/data/train.parquet], val_files: [{folder}/data/test.parquet],
       train_batch_size: 8, max_prompt_length: 64, max_response_length: 8}}
algorithm: {{adv_estimator: gae, use_kl_in_reward: true, kl_ctrl: {{type: {{name: adaptive, horizon: 1000}}}}}}
actor: {{device: cpu, ppo_mini_batch_size: 4, optim: {{lr: 1e-2, lr_warmup_steps: 3, lr_scheduler_type: cosine}}}}
rollout: {{n: 4}}
reward: {{scorer: {folder}/reward.py:score}}
trainer: {{total_training_steps: {steps}, test_freq: 5, save_freq: 1, max_ckpt_to_keep: 3, output_dir: {folder}/runs}}
"""
REWARD = "def score(response, ground_truth, data_source, extra_info):\n    return float(len(response) % 2)\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--steps", type=int, default=100, help="of the whole run")
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
        [whole] = (folder / "runs" / "straight").iterdir()
        expected = Outcome.of(whole)
        kills, runs, equal, half_written = 0, 0, True, 0
        reached = Counter[int]()
        while kills < arguments.kills:
            runs += 1
            name = f"killed-{runs}"
            overrides, log = [f"tracking.experiment_name={name}"], folder / "killed.log"
            while True:
                life = Life(config, overrides, log)
                if kills < arguments.kills and not life.is_over(chance.uniform(0, arguments.longest)):
                    life.kill()
                    life.end()
                    kills += 1
                    reached[newest_step(folder / "runs" / name)] += 1
                    continue
                assert life.end(3600) == 0, log.read_text()[-2000:]
                break
            killed = max((folder / "runs" / name).iterdir())
            equal = equal and Outcome.of(killed) == expected
            half_written += len(list(killed.rglob(".*.tmp")))
        report = {
            "kills": kills,
            "steps": arguments.steps,
            "steps_at_a_kill": len(reached),
            "runs": runs,
            "equal": equal,
            "half_written": half_written,
            "damaged": (folder / "killed.log").read_text().count(" is damaged "),
            "straight_seconds": round(straight_seconds, 1),
        }
    for name, value in report.items():
        print(f"{name:<18} {value}")
    print(json.dumps(report))
    raise SystemExit(0 if equal else 1)


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
