"""Environments: does the reward of the text game rise, and what do turns cost?

A tiny model imitates walks of which every second move is random (``corerl prepare grid-walk``) and then trains with
GRPO in the environment ``grid_walk``, by the commands that a user types, in a temporary folder. The score is the mean
over the sampled responses of a step: the first and the last ``--window`` steps are compared.

    python benchmarks/environments.py --seeds 0,1
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from corerl.telemetry.metrics_log import read_metrics

RISE = 0.3
"""least, of the score"""

SHAPE = (
    "--vocab-size 320 --hidden-size 64 --layers 2 --heads 4 --kv-heads 4 --intermediate-size 256 --max-positions 512 "
    "--rope-theta 10 --initializer-range 0.05"
)

SFT = """
model: {path: model}
output: cold-start
data: {train_files: [data/sft.parquet], train_batch_size: 32, max_length: 256}
optim: {lr: 4e-3, lr_warmup_steps: 10, lr_scheduler_type: linear, min_lr_ratio: 0.1}
trainer: {device: cpu, total_training_steps: 200}
"""

TRAIN = """
model: {path: cold-start}
data: {train_files: [data/train.parquet], train_batch_size: 16, max_prompt_length: 64, max_response_length: 192}
algorithm: {adv_estimator: grpo}
actor: {device: cpu, optim: {lr: 1e-3, lr_warmup_steps: 3}, ppo_mini_batch_size: 8}
rollout:
  n: 8
  multi_turn: {environment: grid_walk, max_assistant_turns: 6, max_turn_length: 12, score_response: false}
"""


def corerl(folder: Path, *arguments: str) -> None:
    """Run a command; its output goes to a file."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with (folder / "output.log").open("a") as log:
        subprocess.run(
            [sys.executable, "-m", "corerl", *arguments],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            check=True,
        )


def measure(seed: int, steps: int) -> list[dict[str, float]]:
    """The metrics of each step."""
    with tempfile.TemporaryDirectory(prefix="corerl-environments-") as name:
        folder = Path(name)
        (folder / "sft.yaml").write_text(SFT)
        (folder / "train.yaml").write_text(TRAIN)
        corerl(folder, "prepare", "grid-walk", "--out=data")
        corerl(folder, "tiny-model", "--out=model", "--corpus=data/sft.parquet", f"--seed={seed}", *SHAPE.split())
        corerl(folder, "sft", "sft.yaml", f"trainer.seed={seed}")
        corerl(folder, "train", "train.yaml", f"trainer.seed={seed}", f"trainer.total_training_steps={steps}")
        [path] = (folder / "runs").rglob("metrics.jsonl")
        return [metrics for metrics in read_metrics(path) if "env/turns/mean" in metrics]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0", help="separated by commas")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--window", type=int, default=3)
    arguments = parser.parse_args()
    rows = []
    print(f"{'seed':>4}  {'score: first':>12}  {'last':>6}  {'turns: first':>12}  {'last':>6}  {'environment':>12}")
    for seed in map(int, arguments.seeds.split(",")):
        steps = measure(seed, arguments.steps)

        def ends(name: str, steps: list[dict[str, float]] = steps) -> tuple[float, float]:
            values = [step[name] for step in steps]
            return statistics.mean(values[: arguments.window]), statistics.mean(values[-arguments.window :])

        (first, last), (first_turns, last_turns) = ends("critic/score/mean"), ends("env/turns/mean")
        waited = max(step["env/tool_seconds/mean"] / step["timing_s/gen"] for step in steps)
        print(f"{seed:>4}  {first:>12.3f}  {last:>6.3f}  {first_turns:>12.2f}  {last_turns:>6.2f}  {waited:>12.1%}")
        rows.append(
            {"seed": seed, "scores": [round(step["critic/score/mean"], 4) for step in steps], "rise": last - first}
        )
    met = all(float(str(row["rise"])) >= RISE for row in rows)
    print(json.dumps({"benchmark": "environments", "required_rise": RISE, "met": met, "runs": rows}))
    sys.exit(not met)


if __name__ == "__main__":
    main()
