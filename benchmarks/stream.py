"""The stream of groups with a stub engine: how busy the engine is, the lengths trained, and the cost of an episode.

``busy``: the engine has a fixed number of slots and draws lengths from a log-normal distribution; a training step takes
0.8 of the time of its generation. Measured in three orders of training: the share of slots in use, how often each
prompt was trained, and the Kolmogorov-Smirnov distance of the lengths trained in the first half of the run from all
lengths drawn::

    python benchmarks/stream.py busy

``growth``: processor time of the stream and memory of the process for so many open episodes, of one turn and of two
turns with an environment. The engine's own share, measured by itself, is left out::

    python benchmarks/stream.py growth
"""

import argparse
import asyncio
import json
import math
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from corerl.cli.main import run
from corerl.contracts.agents import AgentContext
from corerl.contracts.config import DataConfig, ModelConfig, RolloutConfig, TrainConfig
from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl.contracts.rollout_backends import Completion, GenerationRequest, OnFinished, SamplingParams
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data.prompts import Prompt, PromptDataset
from corerl.data.sampler import PromptSampler
from corerl.data.tokenizer import load_tokenizer
from corerl.rollout.episodes import AgentEpisodes
from corerl.rollout.player import Player
from corerl.rollout.recorder import Services
from corerl.rollout.request_queue import RequestQueue
from corerl.rollout.stream import Stream
from corerl.seeding import Seeds
from corerl_agents.turns import TurnTokenizer
from corerl_envs import Start, Task, Turn
from corerl_envs.agent import EnvironmentAgent

SLOTS_BUSY, MS_AN_EPISODE, GIB = 0.95, 1.0, 2.0
"""required: at least, at most, at most"""
MEAN, SIGMA, CAP = 1000, 1.0, 8192
"""tokens of a response"""
SECONDS_A_TOKEN = 0.001
SIGNIFICANT = 1.63
"""of the Kolmogorov-Smirnov distance, by the square root of the sizes: exceeded by chance once in a hundred"""
N = 8
ZEROS = [-1.0] * CAP


def length(seed: int, sample: int) -> int:
    """Drawn for one response."""
    drawn = random.Random(f"{seed}/{sample}").lognormvariate(math.log(MEAN) - SIGMA**2 / 2, SIGMA)
    return max(1, min(CAP, round(drawn)))


@dataclass
class Engine:
    """Each sample has a slot for the time of its tokens; others wait for one, in the order in which they came.

    Attributes:
        busy: slot seconds so far.
    """

    slots: int
    seconds_a_token: float
    most: int | None = None
    version: int = 0
    busy: float = 0.0
    _used: int = 0
    _since: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self._free = asyncio.Semaphore(self.slots)

    def count(self, change: int = 0) -> float:
        """Slot seconds, up to now."""
        now = time.perf_counter()
        self.busy += self._used * (now - self._since)
        self._used, self._since = self._used + change, now
        return self.busy

    async def generate(self, requests: Sequence[GenerationRequest], on_finished: OnFinished) -> None:
        async def sample(request: GenerationRequest, number: int) -> Completion:
            tokens = min(length(request.sampling.seed, number), request.sampling.max_tokens)
            async with self._free:
                version = self.version
                self.count(1)
                await asyncio.sleep(tokens * self.seconds_a_token)
                self.count(-1)
            return Completion(range(tokens), ZEROS[:tokens], "stop", version)

        async def one(position: int, request: GenerationRequest) -> None:
            samples = (sample(request, number) for number in range(request.sampling.n))
            on_finished(position, await asyncio.gather(*samples))

        await asyncio.gather(*(one(position, request) for position, request in enumerate(requests)))


class Reward:
    """The same score for every response."""

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        return [RewardResult(1.0)] * len(requests)

    def submit(self, requests: Sequence[RewardRequest]) -> Any:
        return self

    def result(self) -> list[RewardResult]:
        return [RewardResult(1.0)] * N

    def close(self) -> None:
        pass


class Words:
    """A tokenizer that decodes nothing."""

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [""] * len(rows)


class Env:
    """One more turn, at once."""

    async def reset(self, task: Task, seed: int) -> Start:
        return Start([0])

    async def step(self, state: list[int], response: str) -> Turn:
        state[0] += 1
        return Turn([{"role": "user", "content": "and then?"}], reward=0.5, done=state[0] > 1)

    def close(self) -> None:
        pass


def stream_of(
    engine: Engine, prompts: int, batch: int, steps: int, folder: str | None = None, **trainer: Any
) -> Stream:
    """A stream of prompts that are used once; with a folder of a model, its episodes have two turns."""
    config = TrainConfig(ModelConfig(folder or "none"), rollout=RolloutConfig(n=N))
    config.data = DataConfig(train_batch_size=batch, max_response_length=CAP)
    for name, value in trainer.items():
        setattr(config.trainer, name, value)
    queue = RequestQueue(engine.generate, engine.most)
    episodes = None
    tokenizer = cast(ChatTokenizer, Words())
    ids: tuple[int, ...] = (1, 2, 3)
    messages = [{"role": "user", "content": "what comes first?"}]
    if folder is not None:
        tokenizer = load_tokenizer(config.model)
        ids = tuple(TurnTokenizer(tokenizer).prompt(messages))
        config.rollout.multi_turn.max_turn_length = 64
        agent = EnvironmentAgent(AgentContext(config, tokenizer, lambda key: Env))
        episodes = AgentEpisodes(queue, tokenizer, agent, Services(), 64, config.rollout.agent_timeout)
    rows = tuple(Prompt(index, ids, messages, "stub", "", {}) for index in range(prompts))
    player = Player(queue, tokenizer, None if folder else Reward(), CAP, episodes)
    sampler = PromptSampler(prompts, batch, shuffle=False, seed=0)
    sampling = SamplingParams(CAP, n=N)
    dataset = PromptDataset(rows, None)  # type: ignore[arg-type]
    options: dict[str, Any] = {"batch_filter": None, "greedy_baseline": False, "total_steps": steps}
    return Stream(config, player, dataset, sampler, Seeds(0), sampling, **options)


def busy(given: argparse.Namespace, order: str) -> dict[str, Any]:
    """One run."""
    engine = Engine(given.slots, SECONDS_A_TOKEN, given.most)
    prompts = given.batch * given.steps
    stream = stream_of(engine, prompts, given.batch, given.steps, max_staleness=given.staleness, batch_order=order)
    trained: list[tuple[int, int]] = []
    marks: list[tuple[float, float]] = []
    training = given.training * given.batch * N * MEAN * SECONDS_A_TOKEN / given.slots
    for step in range(1, given.steps + 1):
        rollouts = stream.take(step).scored.rollouts
        trained += [
            (prompt.index, len(completion.token_ids))
            for prompt, completion in zip(rollouts.prompts, rollouts.completions, strict=True)
        ]
        marks.append((time.perf_counter(), engine.count()))
        time.sleep(training)
        engine.version = step
    stream.close()
    last = given.steps - given.staleness - 1  # from then on no group is admitted
    (begin, busy_begin), (end, busy_end) = marks[0], marks[last]
    counts = Counter(index for index, _ in trained)
    drawn = np.array([tokens for _, tokens in trained])
    half = drawn[: len(drawn) // 2]
    return {
        "order": order,
        "busy": (busy_end - busy_begin) / (end - begin) / given.slots,
        "trained_once": set(counts.values()) == {N} and len(counts) == prompts,
        "ks": ks(half, drawn),
        "ks_limit": SIGNIFICANT * math.sqrt(2 / len(half)),
        "mean_first_half": float(half.mean()),
        "mean": float(drawn.mean()),
    }


def ks(some: NDArray[Any], others: NDArray[Any]) -> float:
    """The largest distance of two empirical distributions."""
    points = np.unique(np.concatenate([some, others]))
    shares = [np.searchsorted(np.sort(each), points, side="right") / len(each) for each in (some, others)]
    return float(np.abs(shares[0] - shares[1]).max())


def growth(episodes: int, folder: str | None) -> dict[str, float]:
    """Processor milliseconds an episode of the stream and of the bare engine, and GiB at most, in this process."""
    batch = episodes // N
    engine = Engine(episodes, SECONDS_A_TOKEN / 10)
    stream = stream_of(engine, 2 * batch, batch, 2, folder)
    stream.take(1)  # warms up
    engine.version = 1
    start = time.process_time()
    stream.take(2)
    whole = time.process_time() - start
    stream.close()
    turns = 2 if folder else 1
    n = 1 if folder else N
    requests = [
        GenerationRequest(str(each), [1, 2, 3], SamplingParams(64 if folder else CAP, n=n, seed=each))
        for each in range(episodes // n)
    ]

    async def alone() -> None:
        bare = Engine(episodes, SECONDS_A_TOKEN / 10)
        for _ in range(turns):
            await bare.generate(requests, lambda *_: None)

    start = time.process_time()
    asyncio.run(alone())
    bare_s = time.process_time() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"ms": 1000 * (whole - bare_s) / episodes, "bare_ms": 1000 * bare_s / episodes, "gib": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["busy", "growth", "one"])
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--most", type=int, help="rollout.max_concurrent_requests")
    parser.add_argument("--batch", type=int, default=64, help=f"groups of {N} responses that a step trains")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--staleness", type=int, default=4)
    parser.add_argument("--training", type=float, default=0.8, help="time of training as a share of generation's")
    parser.add_argument("--episodes", type=int, default=1024)
    parser.add_argument("--folder", help="of a model, for episodes of two turns")
    given = parser.parse_args()
    if given.what == "one":
        print(json.dumps(growth(given.episodes, given.folder)))
        return
    met = True
    if given.what == "busy":
        columns = f"{'KS':>7} {'limit':>7} {'mean of the first half':>23} {'of all':>7}"
        print(f"{'order':<16} {'slots busy':>10} {'each once':>10} {columns}")
        for order in ("fifo", "windowed", "first_finished"):
            row = busy(given, order)
            print(
                f"{order:<16} {row['busy']:10.3f} {row['trained_once']!s:>10} {row['ks']:7.4f} {row['ks_limit']:7.4f} "
                f"{row['mean_first_half']:23.0f} {row['mean']:7.0f}",
                flush=True,
            )
            if order == "windowed":  # the default
                met = row["busy"] >= SLOTS_BUSY and row["trained_once"] and row["ks"] <= row["ks_limit"]
    else:
        with tempfile.TemporaryDirectory(prefix="corerl-stream-") as folder:
            met = table_of_growth(Path(folder))
    sys.exit(not met)


def table_of_growth(folder: Path) -> bool:
    corpus = ["--operations", "+", "--max-operand", "9", "--train-size", "40", "--test-size", "8", "--sft-size", "40"]
    assert run(["prepare", "arithmetic", "--out", str(folder / "data"), *corpus]) == 0
    shape = ["--vocab-size", "300", "--hidden-size", "16", "--layers", "1", "--heads", "2", "--kv-heads", "1"]
    train = str(folder / "data" / "train.parquet")
    assert run(["tiny-model", "--out", str(folder / "model"), "--corpus", train, *shape]) == 0
    print(f"{'open episodes':>13} {'turns':>5} {'ms of a core each':>18} {'bare engine':>12} {'GiB':>6}")
    met = True
    for turns in (1, 2):
        for exponent in range(10, 15):
            command = [sys.executable, __file__, "one", "--episodes", str(2**exponent)]
            command += ["--folder", str(folder / "model")] if turns == 2 else []
            row = json.loads(
                subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
            )
            print(f"{2**exponent:13} {turns:5} {row['ms']:18.2f} {row['bare_ms']:12.2f} {row['gib']:6.2f}", flush=True)
            met = met and row["ms"] <= MS_AN_EPISODE and row["gib"] <= GIB
    return met


if __name__ == "__main__":
    main()
