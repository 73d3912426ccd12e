"""Who scores what, in which process, and since when: the thread between a reward manager and its workers."""

import json
import math
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

from corerl.errors import RunError
from corerl.registry.reward_managers import RewardRequest, RewardResult
from corerl_rewards.calls import failed
from corerl_rewards.isolation import linux
from corerl_rewards.isolation.pool import NurseryEndedError, Pool, Worker, frame
from corerl_rewards.isolation.worker import READY

CHUNK_SECONDS = 0.02
"""what a worker is sent at a time should keep it busy so long"""
CHUNK_CALLS = 256
CHUNK_BYTES = 1 << 18
LATE_FACTOR = 50
"""a call is late that takes so many times as long as half of its data source's do at most"""
LATE_SECONDS = 0.5
"""at least"""
BEHIND_SECONDS = 0.25
"""a call that has been late for so long lets all others go first"""
MEDIAN_STEP = 1.15
MOST_FAILED_STARTS = 5
MOST_NURSERIES = 10


@dataclass(frozen=True)
class Rules:
    """``patience`` and ``timeout`` are seconds of one call; ``patience`` where no other is known to compare with."""

    num_workers: int
    timeout: float
    patience: float | None
    max_late_workers: int
    calls_per_worker: int


class _Job:
    """The requests of one call of a reward manager."""

    def __init__(self, requests: Sequence[RewardRequest]) -> None:
        self.requests = requests
        self.results: list[RewardResult | None] = [None] * len(requests)
        self.missing = len(requests)
        self.future: Future[list[RewardResult]] = Future()
        self.future.set_running_or_notify_cancel()


class _Task:
    """One request, on its way."""

    __slots__ = ("_position", "frame", "job", "source")

    def __init__(self, job: _Job, position: int) -> None:
        request = job.requests[position]
        self.job = job
        self._position = position
        self.source = request.data_source
        self.frame = b""
        try:
            self.frame = frame((request.response, request.ground_truth, self.source, request.extra_info))
        except Exception as error:
            self.done(failed("exception", f"the row of a response cannot be sent to a worker process: {error}"))

    def done(self, result: RewardResult) -> None:
        job = self.job
        if job.results[self._position] is None:
            job.results[self._position] = result
            job.missing -= 1
            if not job.missing:
                job.future.set_result(job.results)  # type: ignore[arg-type]

    @property
    def settled(self) -> bool:
        return self.job.future.done() or self.job.results[self._position] is not None


class Dispatcher:
    """Starts its thread and the workers at once."""

    def __init__(self, pool: Pool, rules: Rules) -> None:
        self._pool = pool
        self._rules = rules
        self._queue: deque[_Task] = deque()
        self._workers: dict[int, Worker] = {}
        self._seconds: dict[str, float] = {}
        """data source -> how long its calls take, a running median: a few attacks do not move it"""
        self._failed_starts = 0
        self._nurseries = 1
        self._lock = threading.Lock()
        self._inbox: list[_Job] = []
        self._end: RunError | None = None
        self._wakeup, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._selector.register(pool.control, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="corerl-reward", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[RewardRequest]) -> "Future[list[RewardResult]]":
        """The results, in the order of the requests, when all are there."""
        job = _Job(requests)
        with self._lock:
            if self._end is not None:
                raise self._end
            if requests:
                self._inbox.append(job)
            else:
                job.future.set_result([])
        self._wake()
        return job.future

    def close(self) -> None:
        """End the thread and the processes."""
        with self._lock:
            already, self._end = self._end, self._end or RunError("the reward manager is closed")
        if already is None:
            self._wake()
        self._thread.join()

    def _wake(self) -> None:
        with suppress(BlockingIOError, OSError):  # it has been woken, or it ended
            self._waker.send(b"w")

    def _run(self) -> None:
        try:
            while self._end is None:
                try:
                    self._turn()
                except NurseryEndedError as error:
                    self._start_again(error)
        except Exception as error:
            end = error if isinstance(error, RunError) else RunError(f"the reward manager failed: {error!r}")
            with self._lock:
                self._end = end
        finally:
            self._leave()

    def _leave(self) -> None:
        assert self._end is not None
        jobs = list(self._inbox)
        for worker in self._workers.values():
            jobs += [task.job for task in worker.tasks]
            worker.connection.close()
        for job in [*jobs, *(task.job for task in self._queue)]:
            if not job.future.done():
                job.future.set_exception(self._end)
        self._selector.close()
        self._pool.close()
        self._wakeup.close()
        self._waker.close()

    def _turn(self) -> None:
        """Wait for something to happen, and see to it."""
        self._start_workers()
        self._hand_out()
        for key, events in self._selector.select(self._until_next_look()):
            if isinstance(key.data, Worker):
                if key.data.number in self._workers:
                    self._serve(key.data, events)
            elif key.fileobj is self._wakeup:
                self._take_jobs()
            else:
                self._bury(*self._pool.next_end())
        self._look_at_clock()

    def _serve(self, worker: Worker, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._send(worker)
        if events & selectors.EVENT_READ:
            self._take_results(worker)

    def _take_jobs(self) -> None:
        self._wakeup.recv(4096)
        with self._lock:
            jobs, self._inbox = self._inbox, []
        for job in jobs:
            for position in range(len(job.requests)):
                task = _Task(job, position)
                if task.frame:
                    self._queue.append(task)

    def _start_workers(self) -> None:
        """As many as may score at a time, beside those that are late or being ended.

        Where calls are late more of them are to be expected: while there is work, one more looks for each.
        """
        present = sum(not worker.late and not worker.ending for worker in self._workers.values())
        wanted = self._wanted()
        room = self._rules.num_workers + self._rules.max_late_workers - len(self._workers)
        for _ in range(min(wanted - present, room)):
            worker = self._pool.start()
            self._workers[worker.number] = worker
            self._selector.register(worker.connection, selectors.EVENT_READ, worker)

    def _wanted(self) -> int:
        """How many workers should score now, beside those that are late."""
        late = sum(worker.late and not worker.ending for worker in self._workers.values())
        return self._rules.num_workers + min(late, len(self._queue))

    def _hand_out(self) -> None:
        if not self._queue:
            return
        alive = [worker for worker in self._workers.values() if worker.pid and not worker.ending]
        idle = sorted((worker for worker in alive if not worker.tasks), key=lambda worker: -worker.calls)
        running = sum(bool(worker.tasks) and not worker.late for worker in alive)
        for worker in idle[: max(0, self._wanted() - running)]:
            if not self._queue:
                return
            self._fill(worker)
            worker.since = time.monotonic()
            self._send(worker)

    def _fill(self, worker: Worker) -> None:
        """Give a worker what should keep it busy for a moment, and leave the others their share."""
        most = min(CHUNK_CALLS, math.ceil(len(self._queue) / (2 * self._rules.num_workers)))
        seconds = 0.0
        while self._queue and len(worker.tasks) < most and len(worker.unsent) < CHUNK_BYTES:
            seconds += self._seconds.get(self._queue[0].source, math.inf)
            if worker.tasks and seconds > CHUNK_SECONDS:
                return
            task = self._queue.popleft()
            if not task.settled:
                worker.tasks.append(task)
                worker.unsent += task.frame

    def _send(self, worker: Worker) -> None:
        worker.send()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.unsent else 0)
        if self._selector.get_key(worker.connection).events != events:
            self._selector.modify(worker.connection, events, worker)

    def _take_results(self, worker: Worker) -> None:
        lines = worker.receive()
        if lines is None:  # the call closed the connection, or is about to end
            self._selector.unregister(worker.connection)
            self._pool.end(worker)
            return
        for line in lines:
            if worker.pid is None:
                self._welcome(worker, line)
            elif worker.tasks:
                self._take_result(worker, line)
        if worker.tasks or worker.ending or not lines:
            return
        if worker.calls >= self._rules.calls_per_worker or (worker.late and not self._settle(worker)):
            self._pool.end(worker)

    def _settle(self, worker: Worker) -> bool:
        """Whether a worker stays that was late, and is not any more: its caches are warm, so some are kept."""
        idle = sum(not each.late and not each.tasks and not each.ending for each in self._workers.values())
        worker.late = worker.behind or idle >= self._rules.num_workers
        return not worker.late

    def _welcome(self, worker: Worker, line: bytearray) -> None:
        word, _, pid = line.partition(b" ")
        if word != READY:
            raise RunError(f"a worker of the reward manager began with {bytes(line[:80])!r}")
        worker.pid = int(pid)
        self._failed_starts = 0

    def _take_result(self, worker: Worker, line: bytearray) -> None:
        try:
            score, components, extracted, error, kind, seconds = json.loads(line)
            result = RewardResult(score, components, extracted, error, kind)
        except (TypeError, ValueError):
            self._condemn(worker, "crash", "wrote into the connection of its process")
            return
        task = worker.tasks.popleft()
        task.done(result)
        worker.since = time.monotonic()
        worker.calls += 1
        known = self._seconds.get(task.source, seconds)
        step = MEDIAN_STEP if seconds > known else 1 / MEDIAN_STEP
        self._seconds[task.source] = max(known * step, 1e-6)
        if kind == "memory":  # what is left of its memory is in pieces
            self._give_back(worker)
            self._pool.end(worker)

    def _until_next_look(self) -> float | None:
        """Seconds until a call may be late."""
        busy = [worker for worker in self._workers.values() if worker.tasks and not worker.ending]
        if not busy:
            return None
        moments = [worker.since + self._next_mark(worker) for worker in busy]
        return max(0.0, min(moments) - time.monotonic()) + 0.001

    def _next_mark(self, worker: Worker) -> float:
        """After how many seconds of its call something is to be done about a worker."""
        if self._rules.patience is None or worker.behind:
            return self._rules.timeout
        median = self._seconds.get(worker.tasks[0].source)
        late = self._rules.patience if median is None else max(LATE_SECONDS, LATE_FACTOR * median)
        return min(late + BEHIND_SECONDS if worker.late else late, self._rules.timeout)

    def _start_again(self, error: NurseryEndedError) -> None:
        """After the nursery was killed: any of the calls that were running may have done it."""
        self._nurseries += 1
        if self._nurseries > MOST_NURSERIES:
            raise error
        self._selector.unregister(self._pool.control)
        for number in list(self._workers):
            self._bury(number, str(error))
        self._pool.reopen()
        self._selector.register(self._pool.control, selectors.EVENT_READ)

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        for worker in list(self._workers.values()):
            if not worker.tasks or worker.ending or now - worker.since < self._next_mark(worker):
                continue
            if now - worker.since >= self._rules.timeout:
                self._condemn(worker, "timeout", f"ran past reward.timeout ({self._rules.timeout:g} s)")
            elif worker.late:
                worker.behind = True
                linux.stand_back(worker.pid)
            else:
                worker.late = True
                self._give_back(worker, keep=1)

    def _give_back(self, worker: Worker, keep: int = 0) -> None:
        """Put what a worker has not begun back in front of the queue."""
        while len(worker.tasks) > keep:
            self._queue.appendleft(worker.tasks.pop())

    def _condemn(self, worker: Worker, kind: str, what: str) -> None:
        """End a worker for what its call did."""
        if worker.tasks and not worker.ending:
            task = worker.tasks.popleft()
            task.done(failed(kind, f"the scorer of '{task.source}' {what}"))
        self._give_back(worker)
        self._pool.end(worker)

    def _bury(self, number: int, how: str) -> None:
        """A worker ended: its last results count, then the call that was running is to blame."""
        worker = self._workers[number]
        while lines := worker.receive():
            for line in lines:
                if worker.pid is None:
                    self._welcome(worker, line)
                elif worker.tasks:
                    self._take_result(worker, line)
        with suppress(KeyError):
            self._selector.unregister(worker.connection)
        worker.connection.close()
        del self._workers[number]
        if worker.pid is None:  # it never came to its first call
            self._failed_starts += 1
            if self._failed_starts >= MOST_FAILED_STARTS:
                raise RunError(f"{self._failed_starts} workers in a row ended before their first call, with {how}")
        if worker.tasks:
            task = worker.tasks.popleft()
            kind = "timeout" if how == "SIGALRM" else "crash"  # an alarm that the scorer itself set
            task.done(failed(kind, f"the scorer of '{task.source}' ended its process ({how})"))
        self._give_back(worker)
