"""Managers that wait too long, too short, for too many, or leave something behind."""

import functools
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl.contracts.scorers import Scorer
from planted.fault import Fault
from planted.reward_managers.right import Right, Whole, fault

Requests = Sequence[RewardRequest]
Results = list[RewardResult]


class OneDeadline(Whole):
    """The timeout is that of the batch."""

    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        super().__init__(scorers, num_workers=num_workers, timeout=30.0)
        self.timeout = timeout

    def score(self, requests: Requests) -> Results:
        started = time.monotonic()
        results = super().score(requests)
        late = time.monotonic() - started > self.timeout
        return [RewardResult(None, error="late") if late else result for result in results]


class NoDeadline(Right):
    """Scorers may take as long as they like."""

    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        super().__init__(scorers, num_workers=num_workers, timeout=1000.0)


class OneWorker(Right):
    """One scorer at a time."""

    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        super().__init__(scorers, num_workers=1, timeout=timeout)


class ManyWorkers(Right):
    """Eight scorers at a time."""

    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        super().__init__(scorers, num_workers=8, timeout=timeout)


class LateArrivals(Whole):
    """A score that came too late is given to the first request of the next batch."""

    is_late = False

    def score(self, requests: Requests) -> Results:
        results = super().score(requests)
        if self.is_late:
            results[0] = RewardResult(900.0)
        self.is_late = bool(results) and results[0].score is None
        return results


class CloseHangs(Right):
    """Waits for ever."""

    def close(self) -> None:
        time.sleep(60)


class LeavesAThread(Right):
    """A thread without a purpose."""

    def close(self) -> None:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        super().close()


class OnePartAtATime(Right):
    """A part waits for the one before."""

    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        super().__init__(scorers, num_workers=num_workers, timeout=timeout)
        self.pool = ThreadPoolExecutor(1)

    def submit(self, requests: Requests) -> Any:
        return self.pool.submit(self.score, requests)

    def score(self, requests: Requests) -> Results:
        results: Results = super().submit(requests).result()
        return results

    def close(self) -> None:
        super().close()
        self.pool.shutdown(wait=False)


class WorkersOfEachPart(Right):
    """Each part has workers of its own."""

    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        super().__init__(scorers, num_workers=num_workers, timeout=timeout)
        self.new = functools.partial(Right, scorers, num_workers=num_workers, timeout=timeout)

    def submit(self, requests: Requests) -> Any:
        return self.new().submit(requests)


class Exits(Right):
    """Ends the process at a scorer's error."""

    def one(self, request: RewardRequest) -> RewardResult:
        result = super().one(request)
        if result.error:
            os._exit(4)
        return result


class Backtracks(Right):
    """Looks for words in the response by a regular expression that backtracks."""

    def one(self, request: RewardRequest) -> RewardResult:
        re.match(r"^(\d+)+$", f"{request.response}{'1' * 2000}!")
        return super().one(request)


_LATE = "late_score_is_dropped"

FAULTS: list[Fault] = [
    fault("one_deadline", "the deadline is the batch's", OneDeadline, "deadline_of_each_score", "it is for each score"),
    fault(
        "no_deadline", "there is no deadline", NoDeadline, _LATE, "took 0.7 s with a timeout of 0.4 s gave the score"
    ),
    fault("late_arrivals", "a late score is another's", LateArrivals, _LATE, "came as [900.0, 100.0"),
    fault("one_worker", "one scorer runs at a time", OneWorker, "num_workers_at_a_time", "at most 1 ran at a time"),
    fault("many_workers", "eight scorers run at a time", ManyWorkers, "num_workers_at_a_time", "at most 8 ran"),
    fault(
        "workers_of_each_part",
        "each part has its workers",
        WorkersOfEachPart,
        "num_workers_at_a_time_over_parts",
        "ran at a time",
    ),
    fault(
        "one_part_at_a_time",
        "a part waits for another",
        OnePartAtATime,
        "a_part_that_hangs_holds_up_no_other",
        "a part of 2 requests had not ended after 6 s",
    ),
    fault("close_hangs", "close() hangs", CloseHangs, "close_ends", "close() had not ended after 5 s"),
    fault(
        "leaves_a_thread",
        "close() leaves a thread",
        LeavesAThread,
        "close_gives_back_threads_and_processes",
        "threads behind",
    ),
    fault("exits", "an error ends the process", Exits, "exceptions_are_errors", "ended the process (exit code 4)"),
    fault(
        "backtracks",
        "a regular expression backtracks",
        Backtracks,
        "one_result_a_request",
        "the scoring of 1 requests had not ended after 1.2 s and let no other thread of its process run",
        patience=0.1,
    ),
]
