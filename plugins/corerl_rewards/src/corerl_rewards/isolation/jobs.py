"""Requests sent to a worker, and their results."""

import json
import os
import pickle
import time
from collections.abc import Sequence
from concurrent.futures import Future

from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl_rewards.calls import failed
from corerl_rewards.isolation.worker import HEAD

TOKEN_BYTES = 8
"""random bytes of a token, written as twice as many digits"""


_decode = json.JSONDecoder().decode
"""``json.loads`` would look for other encodings than UTF-8 in each line"""


class Job:
    """The requests of one call of a reward manager; ``future`` has their results once all are complete.

    Args:
        seconds: deadline; a request without a score then gets an error.
    """

    def __init__(self, requests: Sequence[RewardRequest], seconds: float) -> None:
        self.requests = requests
        self.results: list[RewardResult | None] = [None] * len(requests)
        self.missing = len(requests)
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self.future: Future[list[RewardResult]] = Future()
        self.future.set_running_or_notify_cancel()
        if not requests:
            self.future.set_result([])

    def tasks(self) -> list["Task"]:
        """One task for each request that can be sent."""
        tokens = os.urandom(TOKEN_BYTES * len(self.requests)).hex().encode()
        size = 2 * TOKEN_BYTES
        tasks = [Task(self, each, tokens[each * size : (each + 1) * size]) for each in range(len(self.requests))]
        return [task for task in tasks if task.frame]

    def settle(self, position: int, result: RewardResult) -> None:
        """Store a result; if several workers got the request, the first result counts."""
        if self.results[position] is None:
            self.results[position] = result
            self.missing -= 1
            if not self.missing:
                self.future.set_result(self.results)  # type: ignore[arg-type]

    def is_over(self, now: float) -> bool:
        """Whether all results are complete; at the job's deadline, missing results become errors."""
        if self.missing and now >= self._end:
            error = f"was not scored within {self.seconds:g} s, the deadline of its batch of {len(self.requests)}"
            for position in range(len(self.requests)):
                self.settle(position, failed("timeout", f"a response {error}"))
        return not self.missing


class Task:
    """One request.

    Attributes:
        token: prefix of the request's result.
        frame: the bytes to send; empty if the request cannot be sent, and so has a result already.
        again: the request has lost a worker, perhaps not by its own fault; it is not started a third time.
    """

    __slots__ = ("_position", "again", "frame", "job", "source", "token")

    def __init__(self, job: Job, position: int, token: bytes) -> None:
        request = job.requests[position]
        self.job = job
        self._position = position
        self.source = request.data_source
        self.token = token
        self.again = False
        self.frame = b""
        try:
            pickled = pickle.dumps(
                (request.response, request.ground_truth, self.source, request.extra_info), pickle.HIGHEST_PROTOCOL
            )
            self.frame = HEAD.pack(len(pickled), token) + pickled
        except Exception as error:
            self.done(failed("exception", f"the row of a response cannot be sent to a worker process: {error}"))

    def read(self, line: bytearray) -> tuple[RewardResult, float] | None:
        """A worker's result and its duration in seconds; None if the line is no result of this request."""
        if not line.startswith(self.token):
            return None
        try:
            *result, seconds = _decode(line[len(self.token) :].decode())
            return RewardResult(*result), seconds
        except (TypeError, ValueError, RecursionError):
            return None

    def done(self, result: RewardResult) -> None:
        """Store the result."""
        self.job.settle(self._position, result)

    def fail(self, kind: str, what: str) -> None:
        """Store an error of the scorer."""
        self.done(failed(kind, f"the scorer of '{self.source}' {what}"))

    @property
    def settled(self) -> bool:
        """Whether another worker has scored the request."""
        return self.job.results[self._position] is not None
