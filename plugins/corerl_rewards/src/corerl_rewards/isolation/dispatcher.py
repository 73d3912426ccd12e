"""Who scores what, in which process, and since when: the thread between a reward manager and its workers."""

import json
import math
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress

from corerl.errors import RunError
from corerl.registry.reward_managers import RewardRequest, RewardResult
from corerl_rewards.isolation import linux
from corerl_rewards.isolation.jobs import Job, Task
from corerl_rewards.isolation.pace import Pace, Rules
from corerl_rewards.isolation.pool import NurseryEndedError, Pool, Worker
from corerl_rewards.isolation.worker import READY

CHUNK_SECONDS = 0.02
"""what a worker is sent at a time should keep it busy so long"""
CHUNK_CALLS = 256
CHUNK_BYTES = 1 << 18
MOST_FAILED_STARTS = 5
MOST_NURSERIES = 10


class Dispatcher:
    """Starts its thread and the workers at once."""

    def __init__(self, pool: Pool, rules: Rules) -> None:
        self._pool = pool
        self._rules = rules
        self._queue: deque[Task] = deque()
        self._workers: dict[int, Worker] = {}
        self._pace = Pace(rules)
        self._failed_starts = 0
        self._nurseries = 1
        self._lock = threading.Lock()
        self._inbox: list[Job] = []
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
        job = Job(requests)
        with self._lock:
            if self._end is not None:
                raise self._end
            self._inbox.append(job)
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
        if not self._queue and not any(worker.tasks for worker in self._workers.values()):
            self._pace.begin()
        for job in jobs:
            for position in range(len(job.requests)):
                task = Task(job, position)
                if task.frame:
                    self._queue.append(task)

    def _start_workers(self) -> None:
        """As many as should score now, beside those that are late or being ended, and some that stand ready."""
        present = sum(not worker.late and not worker.ending for worker in self._workers.values())
        ready = self._rules.num_workers
        room = self._rules.num_workers + ready + self._rules.max_late_workers - len(self._workers)
        for _ in range(min(self._wanted() + ready - present, room)):
            worker = self._pool.start()
            self._workers[worker.number] = worker
            self._selector.register(worker.connection, selectors.EVENT_READ, worker)

    def _wanted(self) -> int:
        """How many workers should score now, beside those that are late: one more for each that is still to be late."""
        late = sum(worker.late and not worker.ending for worker in self._workers.values())
        return self._rules.num_workers + self._pace.still_late(late, len(self._queue))

    def _hand_out(self) -> None:
        """Keep the workers busy, and no more of them than there should be."""
        alive = [worker for worker in self._workers.values() if worker.pid and not worker.ending]
        idle = sorted((worker for worker in alive if not worker.tasks), key=lambda worker: -worker.calls)
        if not self._queue:
            for worker in idle[2 * self._rules.num_workers :]:
                self._pool.end(worker)
            return
        busy = [worker for worker in alive if worker.tasks and not worker.late]
        more = [worker for worker in busy if len(worker.tasks) <= worker.low and not self._is_old(worker)]
        for worker in [*idle[: max(0, self._wanted() - len(busy))], *more]:
            self._fill(worker)
            self._send(worker)

    def _is_old(self, worker: Worker) -> bool:
        return worker.calls >= self._rules.calls_per_worker

    def _fill(self, worker: Worker) -> None:
        """Give a worker what should keep it busy for a moment, and leave the others their share."""
        worker.waited = linux.waited(worker.pid)
        if not worker.tasks:
            worker.begin()
        most = min(CHUNK_CALLS, math.ceil(len(self._queue) / (2 * self._rules.num_workers)))
        given = 0
        seconds = 0.0
        while self._queue and given < most and len(worker.unsent) < CHUNK_BYTES:
            seconds += self._pace.expected(self._queue[0].source)
            if given and seconds > CHUNK_SECONDS:
                break
            task = self._queue.popleft()
            if not task.settled:
                worker.tasks.append(task)
                worker.unsent += task.frame
                given += 1
        worker.low = given // 2

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
        self._read(worker, lines)
        if not worker.tasks:
            worker.late = worker.behind
            if lines and (worker.behind or self._is_old(worker)):
                self._pool.end(worker)

    def _read(self, worker: Worker, lines: Sequence[bytearray]) -> None:
        for line in lines:
            if worker.pid is not None:
                self._take_result(worker, line)
                continue
            word, _, pid = line.partition(b" ")
            if word != READY:
                raise RunError(f"a worker of the reward manager began with {bytes(line[:80])!r}")
            worker.pid = int(pid)
            self._failed_starts = 0

    def _take_result(self, worker: Worker, line: bytearray) -> None:
        if not worker.tasks:  # it is being ended
            return
        try:
            score, components, extracted, error, kind, seconds = json.loads(line)
            result = RewardResult(score, components, extracted, error, kind)
        except (TypeError, ValueError):
            self._condemn(worker, "crash", "wrote into the connection of its process")
            return
        task = worker.tasks.popleft()
        task.done(result)
        worker.begin()
        worker.calls += 1
        self._pace.took(task.source, seconds)
        if kind == "memory":  # what is left of its memory is in pieces
            self._dismiss(worker)

    def _until_next_look(self) -> float | None:
        """Seconds until a call may be late."""
        busy = [worker for worker in self._workers.values() if worker.tasks and not worker.ending]
        if not busy:
            return None
        return max(0.0, min(map(self._pace.next_mark, busy)) - time.monotonic()) + 0.001

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
            if not worker.tasks or worker.ending or now < self._pace.next_mark(worker):
                continue
            worker.excused = linux.waited(worker.pid) - worker.waited
            if now < self._pace.next_mark(worker) or worker.has_answered:
                continue
            if now >= self._pace.deadline(worker):
                self._condemn(worker, "timeout", f"ran past reward.timeout ({self._rules.timeout:g} s)")
            elif worker.late:
                worker.behind = True
                linux.stand_back(worker.pid)
            else:
                self._give_back(worker, list(worker.tasks)[1:])  # it still has them: whoever is first scores them
                worker.late = True

    def _give_back(self, worker: Worker, tasks: Iterable[Task]) -> None:
        """Put what a worker has not begun in front of the queue, unless it is there since it is late."""
        if not worker.late:
            self._queue.extendleft(reversed(list(tasks)))

    def _dismiss(self, worker: Worker) -> None:
        """End a worker and leave what it has not begun to the others."""
        self._give_back(worker, worker.tasks)
        worker.tasks.clear()
        self._pool.end(worker)

    def _condemn(self, worker: Worker, kind: str, what: str) -> None:
        """End a worker for what its call did."""
        if worker.tasks and not worker.ending:
            worker.tasks.popleft().fail(kind, what)
        self._dismiss(worker)

    def _bury(self, number: int, how: str) -> None:
        """A worker ended: its last results count, then the call that was running is to blame."""
        worker = self._workers[number]
        while lines := worker.receive():
            self._read(worker, lines)
        with suppress(KeyError):
            self._selector.unregister(worker.connection)
        worker.connection.close()
        del self._workers[number]
        if worker.pid is None:  # it never came to its first call
            self._failed_starts += 1
            if self._failed_starts >= MOST_FAILED_STARTS:
                raise RunError(f"{self._failed_starts} workers in a row ended before their first call, with {how}")
        if worker.tasks:
            kind = "timeout" if how == "SIGALRM" else "crash"  # an alarm that the scorer itself set
            worker.tasks.popleft().fail(kind, f"ended its process ({how})")
        self._give_back(worker, worker.tasks)
