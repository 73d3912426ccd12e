"""A stub engine with continuous batching, in virtual time.

All running samples get a token in each decode step, so the time of k steps follows in closed form from the number of
samples and their tokens at the start. With stages, a decode step is a round, in which each micro-batch goes through all
of them. The engine computes the next moment at which a sample ends or the KV cache is full, and sleeps until then: its
cost does not depend on the number of tokens.
"""

import asyncio
import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from corerl.contracts.rollout_backends import Completion, EngineLoad, GenerationRequest
from corerl.errors import RunError

BLOCK = 16
"""tokens that an engine's cache gives to a sample at a time: so many must be free for each before another begins"""

LengthOf = Callable[[int, int], int]
"""(seed of the request, number of the sample) -> tokens that it will have"""


@dataclass(frozen=True)
class EngineSpeed:
    """Seconds of an engine; those of a GPU are sums over stages, one after the other.

    Attributes:
        step: seconds of a decode step, whatever it computes, on the processor.
        sample: seconds of a decode step for each running sample, on the processor.
        token: seconds of a decode step for each token in the cache of the running samples.
        least: seconds of a decode step's matrix products at least: the time of reading the weights.
        product: seconds of these matrix products for each running sample.
        prefill: seconds of a token that is read.
        latency: seconds between a call and its first step.
        exchange: seconds of a decode step's exchanges between GPUs, whatever they carry.
        sent: seconds of these exchanges for each running sample.
        stages: micro-batches into which running samples are divided.
        slowest: share of the slowest stage of a GPU's seconds.
    """

    step: float
    sample: float = 0.0
    token: float = 0.0
    least: float = 0.0
    product: float = 0.0
    prefill: float = 0.0
    latency: float = 0.0
    exchange: float = 0.0
    sent: float = 0.0
    stages: int = 1
    slowest: float = 1.0

    def _bounds(self, running: int) -> list[tuple[float, float]]:
        """Each (seconds of a decode step, more of them for each token in the cache); the largest sum holds.

        b micro-batches go round in a ring of stages, the last of which is the processor. A round takes at least as long
        as one of them needs for its way, and b times as long as each stage and the processor need for one.
        """
        batches = min(self.stages, running)
        each = running / batches
        processor = self.step + self.sample * each
        gpu = self.exchange + self.sent * each + max(self.least, self.product * each)
        token = self.token / batches
        way = (processor + gpu, token)
        if batches == 1:
            return [way]
        slowest = batches * self.slowest
        return [way, (slowest * gpu, slowest * token), (batches * processor, 0.0)]

    def decode(self, running: int, tokens: float, steps: float) -> float:
        """Seconds of so many decode steps; ``tokens`` are those in the cache before the first."""
        mean = tokens + running * steps / 2
        return steps * max(each + token * mean for each, token in self._bounds(running))

    def steps(self, running: int, tokens: float, seconds: float) -> float:
        """The inverse of :meth:`decode`, in steps."""

        def inverse(each: float, token: float) -> float:
            linear, square = each + token * tokens, token * running / 2
            if square * seconds < 1e-12 * linear * linear:
                return seconds / linear
            return (math.sqrt(linear * linear + 4 * square * seconds) - linear) / (2 * square)

        return min(inverse(*bound) for bound in self._bounds(running))


@dataclass(eq=False)
class _Request:
    request: GenerationRequest
    on_finished: Callable[[list[Completion]], None]
    left: int
    completions: list[Completion | None]
    is_read: bool = False
    """its prompt is in the cache"""


@dataclass(eq=False)
class _Sample:
    """A response: ``length`` tokens in the end, of which ``generated`` were there when it was last admitted."""

    of: _Request
    number: int
    length: int
    generated: float = 0.0
    begun: float = 0.0
    """the engine's steps when it was last admitted"""
    version: int | None = None
    updates: list[tuple[int, int]] = field(default_factory=list)
    is_running: bool = False
    entry: int = 0
    """the number of its entry among the ends, of which preemptions leave old ones behind"""


class StubEngine:
    """One engine.

    Args:
        cache: tokens that its KV cache holds.
        most: samples that it computes at a time.

    Attributes:
        busy: virtual seconds with running samples so far.
        own: processor seconds of this stub, which the controller's cost leaves out.
    """

    def __init__(self, speed: EngineSpeed, cache: float, most: int, length_of: LengthOf) -> None:
        self.speed, self._cache, self._most, self._length_of = speed, cache, most, length_of
        self.version = 0
        self.busy = self.own = 0.0
        self.slowdown = 1.0
        self._steps = 0.0
        self._running: dict[_Sample, None] = {}
        """in the order of their admission"""
        self._tokens = 0.0
        """in the cache"""
        self._ends: list[tuple[float, int, _Sample]] = []
        self._waiting: deque[_Sample] = deque()
        self._preempted = self._numbers = 0
        self._since = 0.0
        """the moment up to which the steps are counted"""
        self._stall = 0.0
        """seconds of prefill that are left"""
        self._timer: asyncio.TimerHandle | None = None
        self._planned = 0.0
        """steps until the timer"""
        self._is_paused = False

    def submit(self, request: GenerationRequest, on_finished: Callable[[list[Completion]], None]) -> None:
        """Begin a request; ``on_finished`` is called later, from the event loop.

        Raises:
            RunError: its longest row does not fit the cache.
        """
        longest = len(request.prompt_ids) + request.sampling.max_tokens
        if longest > self._cache:
            raise RunError(f"a row of {longest} tokens does not fit the KV cache of an engine of {self._cache:.0f}")
        asyncio.get_running_loop().call_later(self.speed.latency, self._arrive, request, on_finished)

    @property
    def is_busy(self) -> bool:
        """It has running samples."""
        return bool(self._running)

    def load(self) -> EngineLoad:
        """As an engine reports it."""
        usage = min(1.0, self._tokens / self._cache) if self._cache else 0.0
        return EngineLoad(self._most, len(self._running), len(self._waiting), self._preempted, usage)

    def pause(self) -> None:
        """Compute nothing until :meth:`resume`."""
        self._settle()
        self._is_paused = True
        self._plan()

    def resume(self, version: int) -> None:
        """Go on with weights of this version."""
        self._since = asyncio.get_running_loop().time()
        if version != self.version:
            self.version = version
            for sample in self._running:
                if tokens := self._generated(sample):
                    sample.updates.append((math.floor(tokens), version))
                else:
                    sample.version = version
        self._is_paused = False
        self._plan()

    def slow(self, factor: float) -> None:
        """Every step takes so many times as long from now on."""
        self._settle()
        self.slowdown = factor
        self._plan()

    def _arrive(self, request: GenerationRequest, on_finished: Callable[[list[Completion]], None]) -> None:
        start = time.thread_time()
        n = request.sampling.n
        of = _Request(request, on_finished, n, [None] * n)
        for number in range(n):
            length = min(self._length_of(request.sampling.seed, number), request.sampling.max_tokens)
            self._waiting.append(_Sample(of, number, length))
        self._settle()
        self._plan()
        self.own += time.thread_time() - start

    def _generated(self, sample: _Sample) -> float:
        return sample.generated + (self._steps - sample.begun if sample.is_running else 0.0)

    def _settle(self, steps: float | None = None) -> None:
        """Count the steps up to now; ``steps``: their number, if known."""
        now = asyncio.get_running_loop().time()
        passed, self._since = now - self._since, now
        running = len(self._running)
        if self._is_paused or not running:
            return
        self.busy += passed
        stalled = min(self._stall, passed)
        self._stall -= stalled
        if steps is None:
            steps = self.speed.steps(running, self._tokens, (passed - stalled) / self.slowdown)
            steps = min(steps, self._planned)
        else:
            self._stall = 0.0
        self._steps += steps
        self._tokens += steps * running

    def _wake(self) -> None:
        start = time.thread_time()
        self._timer = None
        self._settle(self._planned)
        finished = []
        while self._ends and self._ends[0][0] <= self._steps + 1e-6:
            _, number, sample = heapq.heappop(self._ends)
            if sample.is_running and sample.entry == number:
                finished.append(sample)
        for sample in finished:
            self._stop(sample)
        while self._tokens + len(self._running) > self._cache and len(self._running) > 1:
            self._preempt()
        self._plan()
        self.own += time.thread_time() - start
        for sample in finished:
            self._finish(sample)

    def _stop(self, sample: _Sample) -> None:
        sample.generated = self._generated(sample)
        sample.is_running = False
        del self._running[sample]
        self._tokens -= len(sample.of.request.prompt_ids) + sample.generated
        if not self._running:
            self._tokens = 0.0  # no rounding is left

    def _preempt(self) -> None:
        """The latest loses its place in the cache, and is computed again."""
        sample = next(reversed(self._running))
        self._stop(sample)
        self._preempted += 1
        self._waiting.appendleft(sample)

    def _finish(self, sample: _Sample) -> None:
        of = sample.of
        version = self.version if sample.version is None else sample.version
        updates = tuple((max(1, min(at, sample.length - 1)), new) for at, new in sample.updates if sample.length > 1)
        tokens = range(sample.length)  # nobody reads them
        of.completions[sample.number] = Completion(tokens, tokens, "stop", version, updates)
        of.left -= 1
        if not of.left:
            of.on_finished([each for each in of.completions if each is not None])

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._most:
            sample = self._waiting[0]
            context = len(sample.of.request.prompt_ids) + sample.generated
            if self._running and self._tokens + context + BLOCK * (len(self._running) + 1) > self._cache:
                return
            self._waiting.popleft()
            if sample.generated or not sample.of.is_read:
                self._stall += context * self.speed.prefill
                sample.of.is_read = True
            if sample.version is None:
                sample.version = self.version
            sample.begun, sample.is_running = self._steps, True
            self._running[sample] = None
            self._tokens += context
            self._numbers += 1
            sample.entry = self._numbers
            heapq.heappush(self._ends, (self._steps + sample.length - sample.generated, self._numbers, sample))

    def _plan(self) -> None:
        """Set the timer to the next moment at which something changes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_paused:
            return
        self._admit()
        while self._ends and not (self._ends[0][2].is_running and self._ends[0][2].entry == self._ends[0][1]):
            heapq.heappop(self._ends)
        running = len(self._running)
        if not running:
            return
        steps = self._ends[0][0] - self._steps
        if running > 1:
            steps = min(steps, max(1.0, (self._cache - self._tokens) / running))
        self._planned = max(0.0, steps)
        seconds = self._stall + self.speed.decode(running, self._tokens, self._planned) * self.slowdown
        self._timer = asyncio.get_running_loop().call_later(seconds, self._wake)


def total(engines: Sequence[StubEngine]) -> EngineLoad | None:
    """The load of all engines together."""
    return EngineLoad.join(engine.load() for engine in engines)
