"""Episodes in the controller and in processes of their own (``rollout.num_workers``).

The agent of ``--turns`` turns computes ``--busy`` seconds in Python for each; a stub engine in the controller answers
each request after ``--seconds``. Measured for each number of workers: episodes a second, processor time of the
controller and of all workers for an episode::

    python benchmarks/episode_workers.py --workers 0 2
"""

import argparse
import asyncio
import logging
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from corerl.cli.main import run
from corerl.contracts.config import ModelConfig, RolloutConfig, RuntimeConfig, TrainConfig
from corerl.contracts.rollout_backends import Completion, GenerationRequest, OnFinished, SamplingParams
from corerl.data.prompts import Prompt
from corerl.data.tokenizer import load_tokenizer
from corerl.plugins import load_plugins
from corerl.registry.parts import select_agent
from corerl.rollout.episode_workers import EpisodeWorker, WorkerEpisodes, episode_role
from corerl.rollout.episodes import Episodes, make_episodes
from corerl.rollout.player import Player
from corerl.rollout.request_queue import RequestQueue
from corerl_ray.options import RayOptions
from corerl_ray.runtime import RayRuntime

N = 8
"""episodes of a group"""
TOKENS = 64
"""of a sample"""

AGENT = """
import time
from corerl.contracts.agents import AgentResult

async def busy(task, model):
    ids = list(task.prompt_ids)
    for turn in range(task.extra_info["turns"]):
        sampled = await model.generate(ids, max_tokens=64)
        ids += [*sampled.token_ids, 5]
        end = time.thread_time() + task.extra_info["busy"]
        while time.thread_time() < end:
            sum(range(1000))
    return AgentResult(1.0)
"""


class Engine:
    """Answers each request after ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def generate(self, requests: Sequence[GenerationRequest], on_finished: OnFinished) -> None:
        await asyncio.sleep(self.seconds)
        for position in range(len(requests)):
            on_finished(position, [Completion([7] * TOKENS, [-0.5] * TOKENS, "length", 0)])


def processor_seconds(pids: Sequence[int]) -> float:
    """Of these processes so far."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


def measure(given: argparse.Namespace, config: TrainConfig, workers: int) -> None:
    """Prints a row."""
    plugins = load_plugins()
    tokenizer = load_tokenizer(config.model, plugins)
    agent = select_agent(config, plugins.registries)
    queue = RequestQueue(Engine(given.seconds).generate)
    config.rollout.num_workers = workers
    pids: list[int] = []
    runtime: RayRuntime | None = None
    episodes: Episodes | None
    if (role := episode_role(config, agent)) is not None:
        runtime = RayRuntime(RuntimeConfig(name="ray"), RayOptions(workers=1))
        group: Any = runtime.spawn(role, EpisodeWorker, config)
        pids = [member.facts.pid for member in group.members]
        episodes = WorkerEpisodes(group, queue, 0)
    else:
        episodes = make_episodes(agent, {}, config, tokenizer, queue, plugins.hook)
    player = Player(queue, tokenizer, None, 2048, episodes)

    def play(groups: int) -> None:
        info = {"turns": given.turns, "busy": given.busy}
        prompts = [Prompt(index, (1, 2, 3), [], "stub", "", info) for index in range(groups)]
        asyncio.run(player.play_all(prompts, range(groups), SamplingParams(2048, n=N), "benchmark"))

    play(2)  # warms up
    used, there, began = time.process_time(), processor_seconds(pids), time.perf_counter()
    play(given.episodes // N)
    took = time.perf_counter() - began
    used, there = time.process_time() - used, processor_seconds(pids) - there
    each = 1000 / given.episodes
    print(f"{workers:7} {given.episodes / took:11.1f} {took:8.1f} {each * used:14.2f} {each * there:11.2f}", flush=True)
    player.close()
    if runtime is not None:
        runtime.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--busy", type=float, default=0.005, help="seconds of Python in a turn")
    parser.add_argument("--seconds", type=float, default=0.2, help="of a request in the engine")
    given = parser.parse_args()
    ray.init("local", num_cpus=64, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="corerl-episodes-") as name:
        folder = Path(name)
        (folder / "agent.py").write_text(AGENT)
        corpus = ["--train-size", "40", "--test-size", "8", "--sft-size", "40"]
        assert run(["prepare", "arithmetic", "--out", str(folder / "data"), *corpus]) == 0
        shape = ["--vocab-size", "300", "--hidden-size", "16", "--layers", "1", "--heads", "2", "--kv-heads", "1"]
        train = str(folder / "data" / "train.parquet")
        assert run(["tiny-model", "--out", str(folder / "model"), "--corpus", train, *shape]) == 0
        rollout = RolloutConfig(agent=f"{folder}/agent.py:busy")
        config = TrainConfig(ModelConfig(str(folder / "model")), rollout=rollout)
        print(f"{'workers':>7} {'episodes/s':>11} {'seconds':>8} {'controller ms':>14} {'workers ms':>11}")
        for workers in given.workers:
            measure(given, config, workers)


if __name__ == "__main__":
    main()
