"""Kills of a run at random instants: metrics and final weights beside those of the same run that was not killed.

PPO with a critic and an adaptive KL penalty on a model of a few thousand parameters, a checkpoint after every step. A
life is killed by SIGKILL at an instant drawn from its first ``--longest`` seconds, start and loading included, and the
same command begins the next, until ``--kills`` have been killed. What comes to the end of the run is compared, and the
next run begins::

    python benchmarks/kills.py --kills 100

With ``--staleness K`` groups are generated ahead of training, and finished ones wait in a buffer. Then the count of
trainings of each prompt is compared: each must be trained exactly once::

    python benchmarks/kills.py --kills 20 --steps 60 --staleness 3
"""

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from corerl.cli.main import run
from corerl.data.files import read_parquet_file
from corerl_testing.lives import Life, Outcome, trained_prompts

SIZES = ["--operations", "+", "--max-operand", "9", "--train-size", "40", "--test-size", "8", "--sft-size", "40"]
SIZE = 8
"""prompts of a step"""
SHAPE = ["--vocab-size", "300", "--hidden-size", "16", "--layers", "1", "--heads", "2", "--kv-heads", "1"]
CONFIG = """
model: {{path: {folder}/model}}
data: {{train_files: [{folder}/data/train.parquet], val_files: [{folder}/data/test.parquet],
       train_batch_size: {size}, max_prompt_length: 64, max_response_length: 8}}
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
    parser.add_argument("--staleness", type=int, default=0, help="trainer.max_staleness")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = material(folder, arguments.steps)
        ahead = stream(folder, arguments.steps, arguments.staleness) if arguments.staleness else []
        start = time.perf_counter()
        assert Life(config, [*ahead, "tracking.experiment_name=straight"], folder / "straight.log").end(3600) == 0
        straight_seconds = time.perf_counter() - start
        [whole] = (folder / "runs" / "straight").iterdir()
        expected = Outcome.of(whole)
        kills, runs, equal, half_written = 0, 0, True, 0
        waiting: list[int] = []
        reached = Counter[int]()
        while kills < arguments.kills:
            runs += 1
            name = f"killed-{runs}"
            overrides, log = [*ahead, f"tracking.experiment_name={name}"], folder / "killed.log"
            while True:
                life = Life(config, overrides, log)
                if kills < arguments.kills and not life.is_over(chance.uniform(0, arguments.longest)):
                    life.kill()
                    life.end()
                    kills += 1
                    reached[newest_step(folder / "runs" / name)] += 1
                    waiting.append(waiting_groups(folder / "runs" / name))
                    continue
                assert life.end(3600) == 0, log.read_text()[-2000:]
                break
            killed = max((folder / "runs" / name).iterdir())
            if arguments.staleness:
                equal = equal and trained_prompts(killed) == Counter(map(str, range(SIZE * arguments.steps)))
            else:
                equal = equal and Outcome.of(killed) == expected
            half_written += len(list(killed.rglob(".*.tmp")))
        report = {
            "kills": kills,
            "steps": arguments.steps,
            "steps_at_a_kill": len(reached),
            "runs": runs,
            "equal": equal,
            "waiting_groups_at_a_kill": round(sum(waiting) / max(1, len(waiting)), 1),
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
    (folder / "config.yaml").write_text(CONFIG.format(folder=folder, steps=steps, size=SIZE))
    return folder / "config.yaml"


def stream(folder: Path, steps: int, staleness: int) -> list[str]:
    """Data of which each row is used once; the keys that generate ahead."""
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{number} + 1 ="}],
            "data_source": "sums",
            "reward_model": {"style": "rule", "ground_truth": str(number)},
        }
        for number in range(SIZE * steps)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "data" / "once.parquet")
    return [
        f"data.train_files=[{folder}/data/once.parquet]",
        "data.shuffle=false",
        f"trainer.max_staleness={staleness}",
        "trainer.log_rollouts_freq=1",
    ]


def waiting_groups(runs: Path) -> int:
    """Of the newest checkpoint of the newest run in a folder."""
    pointers = sorted(runs.glob("*/checkpoints/latest"))
    file = pointers[-1].with_name(pointers[-1].read_text()) / "groups.parquet" if pointers else None
    return len({*read_parquet_file(str(file))["number"].to_pylist()}) if file and file.is_file() else 0


def newest_step(runs: Path) -> int:
    """Of all checkpoints of all runs in a folder; 0 when there is none."""
    pointers = runs.glob("*/checkpoints/latest")
    return max((int(pointer.read_text().removeprefix("global_step_")) for pointer in pointers), default=0)


if __name__ == "__main__":
    main()
