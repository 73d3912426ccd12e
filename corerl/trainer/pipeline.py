"""The batches of coming steps, generated and scored ahead of the step that trains.

With ``trainer.max_staleness`` = k the batch of step s is begun once the weights of version s - 1 - k have been sent, so
that its oldest token lags the policy by at most k updates. A single thread collects the batches in their order, while
the controller trains; weights that are sent meanwhile reach the engine in flight. With k = 0 there is no such thread.
"""

import dataclasses
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from corerl.data.prompts import Prompt, PromptDataset
from corerl.data.sampler import PromptSampler
from corerl.errors import RunError
from corerl.telemetry.timers import Timers
from corerl.trainer.collection import Collector, ScoredRollouts
from corerl.trainer.episodes import episode_metrics


@dataclasses.dataclass(frozen=True)
class Collected:
    """The batch of one step.

    Attributes:
        metrics: of the batch as it was collected.
        seconds: by part, the controller's time that it took.
        background: by part, the time that it took in a thread of its own.
        sampler: the sampler's state after the prompts were drawn, for a checkpoint.
    """

    batch: ScoredRollouts
    metrics: Mapping[str, float]
    seconds: Mapping[str, float]
    sampler: Mapping[str, Any]
    background: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Pipeline:
    """Hands out the batch of each step.

    Args:
        sampler: chooses among ``prompts``.
        max_staleness: batches are collected so many steps ahead, and may be so many updates old.
        total_steps: none is collected beyond.
    """

    def __init__(
        self,
        collector: Collector,
        prompts: PromptDataset,
        sampler: PromptSampler,
        *,
        max_staleness: int,
        total_steps: int,
    ) -> None:
        self._collector, self._prompts, self._sampler = collector, prompts, sampler
        self._max_staleness = max_staleness
        self._total_steps = total_steps
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="corerl-collect") if max_staleness else None
        self._coming: deque[Future[Collected]] = deque()

    def batch(self, step: int) -> Collected:
        """The batch of ``step``, the one after the last; the weights of version ``step - 1`` have been sent.

        Raises:
            RunError: a response is older than ``max_staleness`` allows.
        """
        if self._thread is None:
            collected = self._collect(step)
        else:
            last = min(step + self._max_staleness, self._total_steps)
            for coming in range(step + len(self._coming), last + 1):
                self._coming.append(self._thread.submit(self._collect, coming))
            start = time.perf_counter()
            collected = self._coming.popleft().result()
            waited = {"wait": time.perf_counter() - start}
            collected = dataclasses.replace(collected, seconds=waited, background=collected.seconds)
        metrics = {**collected.metrics, **self._staleness(step, collected.batch)}
        return dataclasses.replace(collected, metrics=metrics)

    def close(self) -> None:
        """Begin no further batch; the one under way ends with the rollout workers."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _collect(self, step: int) -> Collected:
        timers = Timers()
        batch, metrics = self._collector.collect(step, self._next_prompts, timers)
        metrics |= episode_metrics(batch.rollouts.episodes or ())
        metrics["training/epoch"] = float(self._sampler.epoch)
        return Collected(batch, metrics, timers.seconds, self._sampler.state_dict())

    def _next_prompts(self) -> list[Prompt]:
        return [self._prompts[index] for index in next(self._sampler)]

    def _staleness(self, step: int, batch: ScoredRollouts) -> dict[str, float]:
        lags = batch.staleness(step)
        if max(lags) > self._max_staleness:
            raise RunError(
                f"a response started with weights of version {step - 1 - max(lags)}, {max(lags)} updates older than "
                f"the policy's; the limit is trainer.max_staleness={self._max_staleness}"
            )
        return {"training/staleness/mean": sum(lags) / len(lags), "training/staleness/max": float(max(lags))}
