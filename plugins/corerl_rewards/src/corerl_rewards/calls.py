"""One call of a scorer; errors become results."""

import math
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import corerl
from corerl.contracts.dispatch import Future
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.scorers import Scorer
from corerl.threads import CallQueue

T = TypeVar("T")
R = TypeVar("R")

LONGEST_ERROR = 2000
LONGEST_EXTRACTED = 10_000
MOST_PARTS = 1000
LONGEST_NAME = 200

_LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
_NOT_THEIRS = (*_LIBRARIES, str(Path(corerl.__file__).parent), str(Path(__file__).parent))
"""folders that are skipped when the failing line of a user's scorer is searched"""


def score_one(
    scorers: Mapping[str, Scorer], response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]
) -> RewardResult:
    """Score in this thread; an exception or an invalid return value becomes the result's ``error``."""
    scorer = scorers.get(data_source)
    if scorer is None:
        known = ", ".join(sorted(scorers)) or "none"
        return failed("unscored", f"no scorer for data source '{data_source}'; known data sources: {known}")
    try:
        value: Any = scorer(response, ground_truth, data_source, extra_info)
    except BaseException as error:  # in a worker even SystemExit must become a result
        return raised(data_source, error)
    return returned(data_source, value)


def raised(data_source: str, error: BaseException) -> RewardResult:
    """The result of a scorer that raised."""
    text = " ".join(str(error).split())
    kind = "exception"
    if isinstance(error, MemoryError):
        kind = "memory"
    elif isinstance(error, TimeoutError):
        kind = "timeout"
    return failed(kind, f"the scorer of '{data_source}' raised {type(error).__name__}: {text}{_place(error)}")


def _place(error: BaseException) -> str:
    """The innermost line of the scorer's own file in the traceback; '' if the scorer belongs to CoreRL."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [(file, line) for file, line in frames if not file.startswith((*_NOT_THEIRS, "<"))]
    return f" ({own[-1][0]}, line {own[-1][1]})" if own else ""


def returned(data_source: str, value: Any) -> RewardResult:
    """The result of a scorer that returned ``value``."""
    try:
        return _result(value)
    except ValueError as error:
        return failed("value", f"the scorer of '{data_source}' returned {error}")
    except Exception as error:  # raised by the value's methods
        return raised(data_source, error)


def failed(kind: str, error: str) -> RewardResult:
    """A result without a score, with the reason."""
    text = error[:LONGEST_ERROR].encode(errors="replace").decode()  # lone surrogates cannot be written
    return RewardResult(score=None, error=text, error_kind=kind)


def _result(value: Any) -> RewardResult:
    """Check a scorer's return value.

    Raises:
        ValueError: it is neither a finite number nor a mapping of finite numbers with ``score``.
    """
    if not isinstance(value, Mapping):
        return RewardResult(_finite(value))
    if "score" not in value:
        raise ValueError(f"a mapping without 'score': {sorted(map(str, value))}")
    if len(value) > MOST_PARTS:
        raise ValueError(f"a mapping with {len(value):,} entries: {MOST_PARTS:,} at most, each is a metric")
    if long := [name for name in map(str, value) if len(name) > LONGEST_NAME or not _is_text(name)]:
        raise ValueError(f"the name {long[0]!r:.80}: at most {LONGEST_NAME} characters, none of them a surrogate")
    parts = {str(name): _finite(part, f"{name}=") for name, part in value.items() if name != "extracted"}
    extracted = value.get("extracted")
    text = None if extracted is None else str(extracted)[:LONGEST_EXTRACTED].encode(errors="replace").decode()
    return RewardResult(parts.pop("score"), parts, text)


def _is_text(name: str) -> bool:
    """Whether files can hold the text: JSON may contain lone surrogates."""
    return all(not "\ud800" <= each <= "\udfff" for each in name)


def _finite(value: Any, what: str = "") -> float:
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{what}{value!r:.80}, which is not a finite number")
    return number


def in_threads(
    items: Sequence[T], call: Callable[[T], R], late: Callable[[T], R], *, num_workers: int, timeout: float
) -> list[R]:
    """The results of calls in a :class:`CallQueue`, in the order of the items."""
    queue = CallQueue(call, late, num_workers=num_workers, timeout=timeout)
    try:
        return queue.submit(items).result()
    finally:
        queue.close()


def late(who: str, seconds: float) -> RewardResult:
    """The result of a call past its deadline."""
    return failed("timeout", f"{who} ran past reward.timeout ({seconds:g} s)")


@dataclass(frozen=True)
class Made:
    """The future of ``make(value)`` for the value of another future."""

    future: Future
    make: Callable[[Any], list[RewardResult]]

    def result(self) -> list[RewardResult]:
        return self.make(self.future.result())
