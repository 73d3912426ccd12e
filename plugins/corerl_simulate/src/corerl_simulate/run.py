"""Steps of a training in virtual time: the stream, its queue and its player are real, engines and trainers are not."""

import concurrent.futures
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from corerl.contracts.config import TrainConfig
from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl.contracts.rollout_backends import SamplingParams
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data.prompts import Prompt, PromptDataset
from corerl.data.report import LoadReport
from corerl.data.sampler import PromptSampler
from corerl.rollout.event_loop import EventLoop
from corerl.rollout.player import Player
from corerl.rollout.request_queue import RequestQueue
from corerl.rollout.stream import StepGroups, Stream
from corerl.seeding import Seeds
from corerl_simulate import costs
from corerl_simulate.costs import Rows, Spent, TrainingCost
from corerl_simulate.dispatch import Engines
from corerl_simulate.engine import StubEngine
from corerl_simulate.job import Job
from corerl_simulate.lengths import Lengths
from corerl_simulate.table import Table
from corerl_simulate.virtual_time import VirtualTime

PIECES = 50
"""of a part of training, after each of which the engines are looked at"""


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        parts: name -> seconds, in the words of ``timing_s/``: gen, wait, handover, old_log_prob, ref, values,
            update_critic, update_actor, update_weights, rest.
        seconds: of the step.
        generating: seconds of generation, beside training too.
        engines_idle: share of the engines' time without a running sample.
        trainers_idle: share of the training GPUs' time in which they neither train nor generate, waits for slower
            ranks included.
        staleness, stalest: updates between the weights that began a response and the policy, mean and largest.
        tokens: generated and trained.
        controller: processor seconds of the real objects for this step: stream, queue, player, dispatch, balance.
        simulated: processor seconds of the simulation of this step in all.
    """

    parts: dict[str, float]
    seconds: float
    generating: float
    engines_idle: float
    trainers_idle: float
    staleness: float
    stalest: float
    tokens: int
    controller: float
    simulated: float


class _Reward:
    """The same score for every response, at once."""

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        return [RewardResult(1.0)] * len(requests)

    def submit(self, requests: Sequence[RewardRequest]) -> "concurrent.futures.Future[list[RewardResult]]":
        future: concurrent.futures.Future[list[RewardResult]] = concurrent.futures.Future()
        future.set_result(self.score(requests))
        return future

    def close(self) -> None:
        """There is nothing to close."""


class _Words:
    """A tokenizer that decodes nothing."""

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [""] * len(rows)


class _VirtualStream(Stream):
    """The real stream on a virtual clock."""

    def __init__(self, clock: VirtualTime, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._loop.close()
        self._loop = cast(EventLoop, clock)


class Simulation:
    """The run of a job.

    Args:
        lengths: tokens of responses, at most ``data.max_response_length``.
        prompt: tokens of every prompt.
        steps: to be simulated.
        mps: NVIDIA's MPS runs where engines and trainers share GPUs at the same time.
    """

    def __init__(self, job: Job, lengths: Lengths, prompt: int, table: Table, steps: int, *, mps: bool = True) -> None:
        self._job, self._table, self._mps = job, table, mps
        self._clock = VirtualTime()
        speed = costs.engine_speed(job.sizes["actor"], job, table)
        rates = table.engine(job.engines.backend)
        limit = job.config.data.max_response_length

        def length_of(seed: int, sample: int) -> int:
            return min(limit, lengths.of(seed, sample))

        self._engines = Engines(
            [
                StubEngine(speed, job.engines.cache, rates.most * job.engines.data, length_of)
                for _ in range(job.engines.count)
            ],
            job.most,
        )
        self._stream = self._stream_of(job.config, prompt, steps, reports=rates.reports)
        self._costs = {role: TrainingCost(job, role, table) for role in job.sizes}
        self._begun = 0.0

    def _stream_of(self, config: TrainConfig, prompt: int, steps: int, *, reports: bool) -> Stream:
        queue = RequestQueue(
            self._engines.generate,
            config.rollout.max_concurrent_requests,
            self._engines.load if reports and config.trainer.max_staleness else None,
        )
        reward = _Reward()
        player = Player(queue, cast(ChatTokenizer, _Words()), reward, config.data.max_response_length)
        size = config.data.train_batch_size
        count = size * (steps + config.trainer.max_staleness + 1)
        ids = range(prompt)
        rows = tuple(Prompt(index, cast(Any, ids), [], "simulated", "", {}) for index in range(count))
        return _VirtualStream(
            self._clock,
            config,
            player,
            PromptDataset(rows, LoadReport()),
            PromptSampler(count, size, shuffle=False, seed=0),
            Seeds(config.trainer.seed),
            SamplingParams(config.data.max_response_length, n=config.rollout.n),
            batch_filter=None,
            greedy_baseline=False,
            total_steps=steps + config.trainer.max_staleness + 1,
        )

    def step(self, number: int) -> Step:
        """Step ``number``, the one after the last; the first is 1."""
        start, own, busy = time.thread_time(), self._own(), self._busy()
        groups = self._stream.take(number)
        waited = self._clock.now - self._begun
        took = time.thread_time() - start - (self._own() - own)
        planning = time.thread_time()
        rows = _rows(groups)
        spent = self._training(rows)
        planning = time.thread_time() - planning
        training = self._train(spent)
        tokens = int(rows.responses.sum())
        after = costs.weights(self._job, self._table)
        self._pause()
        self._clock.wait(after)
        self._resume(number)
        parts = {"gen" if not self._job.config.trainer.max_staleness else "wait": waited, **training}
        parts["update_weights"] = after
        parts["rest"] = costs.rest(self._job, self._table, tokens + int(rows.prompts.sum()))
        self._clock.wait(parts["rest"])
        ended = self._clock.now
        seconds, self._begun = ended - self._begun, ended
        idle = 1 - (self._busy() - busy) / (seconds * len(self._engines.engines))
        working = sum(part.busy for part in spent.values())
        if not self._job.engines.gpus and not self._job.config.trainer.max_staleness:
            working += (1 - idle) * seconds  # the same GPUs generate
        whole = time.thread_time() - start
        return Step(
            parts=parts,
            seconds=seconds,
            generating=(1 - idle) * seconds,
            engines_idle=idle,
            trainers_idle=max(0.0, 1 - working / seconds),
            staleness=groups.metrics["training/staleness/mean"],
            stalest=groups.metrics["training/staleness/max"],
            tokens=tokens,
            controller=took + planning,
            simulated=whole,
        )

    def close(self) -> None:
        """End all groups."""
        self._stream.close()

    def _training(self, rows: Rows) -> dict[str, Spent]:
        spent = {}
        if self._job.old_log_probs:
            spent["old_log_prob"] = self._costs["actor"].forward(rows)
        if "ref" in self._costs:
            spent["ref"] = self._costs["ref"].forward(rows)
        if "critic" in self._costs:
            spent["values"] = self._costs["critic"].forward(rows)
            spent["update_critic"] = self._costs["critic"].update(rows)
        spent["update_actor"] = self._costs["actor"].update(rows)
        return spent

    def _train(self, spent: dict[str, Spent]) -> dict[str, float]:
        """Let the time of training pass; the seconds of each part."""
        handover = costs.handover(self._job, self._table)
        self._clock.wait(handover)
        found = {"handover": handover}
        for name, part in spent.items():
            start = self._clock.now
            self._work(part.seconds)
            found[name] = self._clock.now - start
        self._slow(1.0)
        return found

    def _work(self, seconds: float) -> None:
        """Train for so long; meanwhile engines that generate lengthen it."""
        factor, slowdown = self._overlapping()
        if factor == 1:
            self._clock.wait(seconds)
            return
        self._slow(slowdown)
        piece = seconds / PIECES
        for _ in range(PIECES):
            is_busy = any(engine.is_busy for engine in self._engines.engines)
            self._clock.wait(piece * (factor if is_busy else 1.0))

    def _overlapping(self) -> tuple[float, float]:
        """How many times as long training and generation take while the other goes on."""
        overlap = self._table.overlap
        if not self._job.config.trainer.max_staleness:
            return 1.0, 1.0
        if self._job.engines.gpus:
            return overlap.host, 1.0
        return (overlap.training, overlap.engine) if self._mps else (overlap.turns, overlap.turns)

    def _slow(self, factor: float) -> None:
        async def slow() -> None:
            for engine in self._engines.engines:
                engine.slow(factor)

        if self._job.is_beside:
            self._clock.run(slow())

    def _pause(self) -> None:
        async def pause() -> None:
            for engine in self._engines.engines:
                engine.pause()

        self._clock.run(pause())

    def _resume(self, version: int) -> None:
        async def resume() -> None:
            for engine in self._engines.engines:
                engine.resume(version)

        self._clock.run(resume())

    def _busy(self) -> float:
        return sum(engine.busy for engine in self._engines.engines)

    def _own(self) -> float:
        return sum(engine.own for engine in self._engines.engines)


def _rows(groups: StepGroups) -> Rows:
    rollouts = groups.scored.rollouts
    return Rows(
        torch.tensor([len(prompt.token_ids) for prompt in rollouts.prompts]),
        torch.tensor([len(completion.token_ids) for completion in rollouts.completions]),
        torch.tensor(rollouts.group_ids),
    )


def simulate(job: Job, lengths: Lengths, prompt: int, table: Table, *, steps: int = 4, mps: bool = True) -> Step:
    """The mean of the steps after the first ones, in which no weights are old yet.

    Args:
        steps: that the mean is of, 1 or more.

    Raises:
        RunError: the engines cannot hold a row, or the stream stands still.
    """
    warm = 1 + job.config.trainer.max_staleness if job.config.trainer.max_staleness else 0
    simulation = Simulation(job, lengths, prompt, table, warm + steps, mps=mps)
    try:
        found = [simulation.step(number + 1) for number in range(warm + steps)][warm:]
    finally:
        simulation.close()
    names = found[0].parts
    parts = {name: sum(step.parts[name] for step in found) / len(found) for name in names}
    means = {
        field.name: sum(getattr(step, field.name) for step in found) / len(found)
        for field in dataclasses.fields(Step)
        if field.name not in ("parts", "stalest", "tokens")
    }
    stalest = max(step.stalest for step in found)
    return Step(parts=parts, stalest=stalest, tokens=sum(step.tokens for step in found) // len(found), **means)
