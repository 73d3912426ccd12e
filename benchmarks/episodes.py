"""Episodes of several turns, each with one slow answer of the environment: seconds of generation.

A tiny random model plays with the backend ``hf`` on the CPU, by the command ``corerl train``, in a temporary folder.
Every fourth episode has its slow answer in the same turn: if all episodes waited for the slowest one in each turn, all
turns would be slow. This file is also the plugin that registers the environment. The first step, which warms up, is
left out.

    python benchmarks/episodes.py [--episodes 16] [--turns 4] [--seconds 1]
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow
import pyarrow.parquet

from corerl import Register, hookimpl
from corerl.telemetry.metrics_log import read_metrics
from corerl_envs import EnvironmentFactory, Start, Task, Turn

MOST = 2.2
"""seconds of generation, with the default arguments"""
SAMPLES = 4
SHAPE = "--vocab-size 300 --hidden-size 32 --layers 2 --heads 2 --kv-heads 2 --intermediate-size 64 --max-positions 512"

TRAIN = """
model: {{path: model}}
data:
  train_files: [train.parquet]
  train_batch_size: {prompts}
  max_prompt_length: 64
  max_response_length: {tokens}
algorithm: {{adv_estimator: grpo}}
actor: {{device: cpu, ppo_mini_batch_size: {prompts}}}
rollout:
  n: {samples}
  multi_turn:
    environment: waiting
    max_assistant_turns: {turns}
    max_turn_length: 8
    score_response: false
trainer: {{total_training_steps: {steps}}}
plugins: {{load: [{plugin}]}}
"""


@dataclass
class Episode:
    """The turn with the slow answer, and the turns so far."""

    slow: int
    turn: int = 0


@dataclass
class Waiting:
    """Answers at once but for one turn of each episode; the episodes take turns in which one that is."""

    turns: int = field(default_factory=lambda: int(os.environ["EPISODES_TURNS"]))
    seconds: float = field(default_factory=lambda: float(os.environ["EPISODES_SECONDS"]))
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def reset(self, task: Task, seed: int) -> Start:
        return Start(Episode(next(self.numbers) % self.turns))

    async def step(self, state: Episode, response: str) -> Turn:
        turn, state.turn = state.turn, state.turn + 1
        if turn == state.slow:
            await asyncio.sleep(self.seconds)
        return Turn([{"role": "user", "content": "go on"}], reward=float(len(response) % 2))

    def close(self) -> None:
        pass


@hookimpl
def register_environments(register: Register[EnvironmentFactory]) -> None:
    register("waiting", Waiting, summary="answers late in one turn of each episode")


def measure(folder: Path, given: argparse.Namespace) -> list[dict[str, float]]:
    """The metrics of each step but the first."""
    prompts = given.episodes // SAMPLES
    prompt = [{"role": "user", "content": "walk"}]
    row = {"prompt": prompt, "data_source": "waiting", "reward_model": {"ground_truth": "none"}}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row] * 4 * prompts), folder / "train.parquet")
    values = {"prompts": prompts, "samples": SAMPLES, "turns": given.turns, "tokens": 64 * given.turns}
    config = TRAIN.format(**values, steps=given.steps + 1, plugin=Path(__file__).resolve())
    (folder / "train.yaml").write_text(config)
    told = {"EPISODES_TURNS": str(given.turns), "EPISODES_SECONDS": str(given.seconds), "OMP_NUM_THREADS": "1"}
    for arguments in (["tiny-model", "--out=model", "--corpus=train.parquet", *SHAPE.split()], ["train", "train.yaml"]):
        command = [sys.executable, "-m", "corerl", *arguments]
        done = subprocess.run(command, cwd=folder, env=os.environ | told, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{done.stdout}{done.stderr}corerl {' '.join(arguments)} failed")
    [path] = (folder / "runs").rglob("metrics.jsonl")
    return [metrics for metrics in read_metrics(path) if "env/turns/mean" in metrics][1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=16, help=f"of a step, a multiple of {SAMPLES}")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.0, help="of the slow answer")
    parser.add_argument("--steps", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="corerl-episodes-") as folder:
        steps = measure(Path(folder), given)
    seconds = [step["timing_s/gen"] for step in steps]
    turns = statistics.mean(step["env/turns/mean"] for step in steps)
    waited = statistics.mean(step["env/tool_seconds/mean"] for step in steps)
    median = statistics.median(seconds)
    print(f"{given.episodes} episodes of {turns:g} turns, each of which waited {waited:.2f} s")
    print(f"generation: median {median:.2f} s, from {min(seconds):.2f} to {max(seconds):.2f}; required: at most {MOST}")
    print(json.dumps({"benchmark": "episodes", "gen_s": seconds, "turns": turns, "met": median <= MOST}))
    sys.exit(median > MOST)


if __name__ == "__main__":
    main()
