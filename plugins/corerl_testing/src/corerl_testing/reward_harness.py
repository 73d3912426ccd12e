"""A reward manager under test, its requests, and scorers that follow their requests.

The scorers are functions of a module, so that a manager may run them in other processes.
"""

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from corerl.contracts.reward_managers import (
    PartwiseRewardManager,
    RewardManager,
    RewardManagerFactory,
    RewardRequest,
    RewardResult,
)
from corerl.registry import Selected
from corerl_testing.deadline import within
from corerl_testing.results import CheckFailed, CheckSkipped

KIND = re.compile(r"\w+")

PATIENCE = 5.0
"""seconds for a call beyond its scorers: room for the start of processes"""

START = 60.0
"""seconds for the construction of a manager"""

HANG = 12.0
"""seconds after which a hanging scorer gives up, longer than any check waits"""


def scripted(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> Any:
    """Follow ``extra_info``: sleep, raise, or return a value."""
    time.sleep(extra_info.get("seconds", 0.0))
    if "raises" in extra_info:
        raise extra_info["raises"]
    return extra_info["returns"] if "returns" in extra_info else float(response)


def low(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> float:
    return 1.0


def high(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> float:
    return 1000.0


def told(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> dict[str, Any]:
    """Two components, and the scorer's arguments as the extracted text."""
    extracted = repr((response, ground_truth, data_source, dict(extra_info)))
    return {"score": 1.0, "format": 0.25, "length": 7, "extracted": extracted}


def by_truth(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> float:
    """The ground truth, a number."""
    return float(ground_truth)


def timed(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> dict[str, float]:
    """Sleep, and return start and end."""
    started = time.monotonic()
    time.sleep(extra_info["seconds"])
    return {"score": 1.0, "started": started, "ended": time.monotonic()}


class Manager:
    """A manager within a ``with``; every request has a deadline."""

    def __init__(
        self,
        selected: Selected[RewardManagerFactory],
        scorer: Any = scripted,
        workers: int = 4,
        timeout: float = 30.0,
        other: Any = high,
    ) -> None:
        scorers = {"source": scorer, "other": other}
        factory = selected.load()
        self._manager: RewardManager = within(
            START, lambda: factory(scorers, num_workers=workers, timeout=timeout), "the making of a manager"
        )

    def __enter__(self) -> "Manager":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def takes_parts(self) -> bool:
        """Whether the manager has ``submit``."""
        return isinstance(self._manager, PartwiseRewardManager)

    def score(self, requests: Sequence[RewardRequest], seconds: float = HANG) -> list[RewardResult]:
        """One result for each request, each either a score or an error."""
        what = f"the scoring of {len(requests)} requests"
        results = within(seconds, lambda: self._manager.score(requests), what)
        if not isinstance(results, list) or len(results) != len(requests):
            given = f"{len(results)} results" if isinstance(results, list) else f"a {type(results).__name__}"
            raise CheckFailed(f"{len(requests)} requests gave {given}: there must be a list with one result for each")
        for result in results:
            _well_formed(result)
        return results

    def parts(self, parts: Sequence[Sequence[RewardRequest]], seconds: float = HANG) -> Iterator[list[RewardResult]]:
        """The results of parts that are submitted together, the last part first.

        Raises:
            CheckSkipped: the manager takes no parts.
        """
        manager = self._manager
        if not isinstance(manager, PartwiseRewardManager):
            raise CheckSkipped("it has no submit(): it is asked for whole batches")
        futures = [manager.submit(part) for part in parts]
        for future, part in zip(reversed(futures), reversed(parts), strict=True):
            results = within(seconds, future.result, f"the scoring of a part of {len(part)} requests")
            if len(results) != len(part):
                raise CheckFailed(f"a part of {len(part)} requests gave {len(results)} results")
            yield results

    def close(self) -> None:
        within(PATIENCE, self._manager.close, "close()")


def _well_formed(result: RewardResult) -> None:
    if not isinstance(result, RewardResult):
        raise CheckFailed(f"a result is {result!r:.80}: it must be a RewardResult")
    if (result.score is None) == (result.error is None):
        raise CheckFailed(f"a result has score {result.score} and error {result.error!r}: exactly one must be None")
    if not isinstance(result.extracted, str | None):
        raise CheckFailed(f"a result has extracted={result.extracted!r:.80}: it must be text, or None")
    if result.error_kind is not None and not KIND.fullmatch(result.error_kind):
        raise CheckFailed(f"the error_kind {result.error_kind!r} must be one word: it names a metric")
    if result.error is not None and (not result.error.strip() or "\n" in result.error):
        raise CheckFailed(f"the error {result.error!r} must be one line that says what went wrong")
    numbers = result.components if result.score is None else {**result.components, "score": result.score}
    for name, number in numbers.items():
        if type(number) not in (int, float) or not math.isfinite(number):
            raise CheckFailed(f"a result has {name}={number!r}, which is not a finite int or float")


def ask(
    response: str = "1", length: int = 8, source: str = "source", truth: Any = "truth", **extra_info: Any
) -> RewardRequest:
    """A request; ``extra_info`` is for :func:`scripted`."""
    return RewardRequest(response, truth, source, extra_info, response_length=length, max_response_length=32768)


def ascending(scores: Sequence[float | None]) -> bool:
    """Whether all are scores, each above the one before."""
    return all(a is not None and b is not None and a < b for a, b in pairwise(scores))
