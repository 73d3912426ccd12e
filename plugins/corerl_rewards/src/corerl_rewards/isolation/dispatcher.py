"""The thread between a reward manager and its workers."""

import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress

from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl.errors import RunError
from corerl_rewards.isolation.jobs import Job
from corerl_rewards.isolation.pace import Rules
from corerl_rewards.isolation.pool import NurseryEndedError, Pool
from corerl_rewards.isolation.scheduler import Scheduler


class Dispatcher:
    """Starts its thread and the workers on creation."""

    def __init__(self, pool: Pool, rules: Rules) -> None:
        self._rules = rules
        self._lock = threading.Lock()
        self._inbox: list[Job] = []
        self._end: RunError | None = None
        self._wakeup, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._pool = pool
        self._scheduler = Scheduler(pool, rules, self._wakeup)
        self._thread = threading.Thread(target=self._run, name="corerl-reward", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[RewardRequest]) -> "Future[list[RewardResult]]":
        """A future of all results, in the order of the requests."""
        with self._lock:
            if self._end is not None:
                raise self._end
            before = sum(job.missing for job in (*self._scheduler.jobs, *self._inbox))
            job = Job(requests, self._rules.batch_seconds(before + len(requests)))
            self._inbox.append(job)
            is_first = len(self._inbox) == 1
        if is_first:  # the thread is awake for the others already
            self._wake()
        return job.future

    def close(self) -> None:
        """Stop the thread and the processes."""
        with self._lock:
            already, self._end = self._end, self._end or RunError("the reward manager is closed")
        if already is None:
            self._wake()
        self._thread.join()

    def _wake(self) -> None:
        with suppress(BlockingIOError, OSError):  # already woken, or ended
            self._waker.send(b"w")

    def _run(self) -> None:
        try:
            while self._end is None:
                try:
                    if self._scheduler.turn():
                        self._take_jobs()
                except NurseryEndedError as error:
                    self._scheduler.start_again(error)
        except Exception as error:
            end = error if isinstance(error, RunError) else RunError(f"the reward manager failed: {error!r}")
            with self._lock:
                self._end = end
        finally:
            self._leave()

    def _take_jobs(self) -> None:
        self._wakeup.recv(4096)
        with self._lock:
            jobs, self._inbox = self._inbox, []
        self._scheduler.take(jobs)

    def _leave(self) -> None:
        assert self._end is not None
        self._scheduler.close()
        for job in (*self._scheduler.jobs, *self._inbox):
            if not job.future.done():
                job.future.set_exception(self._end)
        self._pool.close()
        self._wakeup.close()
        self._waker.close()
