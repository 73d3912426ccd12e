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
from corerl_rewards.isolation import nursery
from corerl_rewards.isolation.connection import Worker
from corerl_rewards.isolation.jobs import Job, Task
from corerl_rewards.isolation.pace import Pace, Rules
from corerl_rewards.isolation.pool import NurseryEndedError, Pool, how_ended
from corerl_rewards.isolation.worker import READY

CHUNK_SECONDS = 0.02
"""what a worker is sent at a time should keep it busy so long"""
CHUNK_CALLS = 256
CHUNK_BYTES = 1 << 18
START_SECONDS = 30.0
"""that a worker may take to wait for requests, and to end"""
MOST_FAILED_STARTS = 5
MOST_RESTARTS = 3
"""of the nursery, one after the other, with no call under way"""
LONGEST_WAIT = 0.5
"""seconds between two looks at the nursery while there is something to do"""
NOT_COUNTED = "waiting for a processor or the disk does not count"
TIMER_SIGNALS = ("SIGALRM", "SIGPROF", "SIGVTALRM")
"""that end a process which set itself a deadline"""


class Dispatcher:
    """Starts its thread and the workers at once."""

    def __init__(self, pool: Pool, rules: Rules) -> None:
        self._pool = pool
        self._rules = rules
        self._jobs: list[Job] = []
        self._queue: deque[Task] = deque()
        self._again: deque[Task] = deque()
        """lost their worker, perhaps by no fault of their own: each gets one of its own while no other call runs"""
        self._workers: dict[int, Worker] = {}
        self._pace = Pace(rules)
        self._failed_starts = 0
        self._restarts = 0
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
        with self._lock:
            if self._end is not None:
                raise self._end
            before = sum(job.missing for job in (*self._jobs, *self._inbox))
            job = Job(requests, self._rules.batch_seconds(before + len(requests)))
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
        for worker in self._workers.values():
            worker.connection.close()
        for job in (*self._jobs, *self._inbox):
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
                self._listen()
        self._look_at_clocks()

    def _listen(self) -> None:
        """Hear which workers were born, and which ended."""
        for word, number, value in self._pool.messages():
            if word == nursery.END:
                self._bury(self._workers[number], how_ended(value))
            else:
                self._workers[number].pid = value

    def _serve(self, worker: Worker, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._send(worker)
        if events & selectors.EVENT_READ:
            self._take_results(worker)

    def _take_jobs(self) -> None:
        self._wakeup.recv(4096)
        with self._lock:
            jobs, self._inbox = self._inbox, []
        if not self._jobs and not any(worker.tasks for worker in self._workers.values()):
            self._pace.begin()
        self._jobs += jobs
        for job in jobs:
            self._queue += job.tasks()

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
        alive = [worker for worker in self._workers.values() if worker.ready and not worker.ending]
        idle = sorted((worker for worker in alive if not worker.tasks), key=lambda worker: -worker.calls)
        if not self._queue:
            for worker in idle[2 * self._rules.num_workers :]:
                self._pool.end(worker)
            self._hand_out_again()
            return
        busy = [worker for worker in alive if worker.tasks and not worker.late]
        if any(worker.tasks and worker.tasks[0].again for worker in alive):
            return
        more = [worker for worker in busy if len(worker.tasks) <= worker.low and not self._is_old(worker)]
        for worker in [*idle[: max(0, self._wanted() - len(busy))], *more]:
            self._fill(worker)
            self._send(worker)

    def _hand_out_again(self) -> None:
        """Give a call that lost its worker another, while there is nothing else: it alone is to blame then."""
        while self._again and self._again[0].settled:
            self._again.popleft()
        if not self._again or any(worker.tasks for worker in self._workers.values()):
            return
        idle = [worker for worker in self._workers.values() if worker.ready and not worker.ending]
        fresh = [worker for worker in idle if not worker.calls]
        if fresh:
            self._give(fresh[0], self._again.popleft())
            self._send(fresh[0])
        elif idle:
            self._pool.end(idle[0])  # another takes its place

    def _is_old(self, worker: Worker) -> bool:
        return worker.calls >= self._rules.calls_per_worker

    def _fill(self, worker: Worker) -> None:
        """Give a worker what should keep it busy for a moment, and leave the others their share."""
        most = min(CHUNK_CALLS, math.ceil(len(self._queue) / (2 * self._rules.num_workers)))
        given = 0
        seconds = 0.0
        while self._queue and given < most and len(worker.unsent) < CHUNK_BYTES:
            seconds += self._pace.expected(self._queue[0].source)
            if given and seconds > CHUNK_SECONDS:
                break
            task = self._queue.popleft()
            if not task.settled:
                self._give(worker, task)
                given += 1
        worker.low = given // 2

    def _give(self, worker: Worker, task: Task) -> None:
        if not worker.tasks:
            worker.clock.begin()
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
        self._read(worker, lines)
        if not worker.tasks:
            worker.late = False
            if lines and self._is_old(worker):
                self._pool.end(worker)

    def _read(self, worker: Worker, lines: Sequence[bytearray]) -> None:
        for line in lines:
            if worker.tasks:
                self._take_result(worker, line)
            elif line == READY and not worker.ready:
                worker.ready = True
                self._failed_starts = 0
            else:  # what an earlier call left behind writes
                self._pool.end(worker)

    def _take_result(self, worker: Worker, line: bytearray) -> None:
        task = worker.tasks[0]
        try:
            if not line.startswith(task.token):
                raise ValueError
            score, components, extracted, error, kind, seconds = json.loads(line[len(task.token) :])
        except (TypeError, ValueError, RecursionError):
            self._condemn(worker, "crash", "wrote into the connection of its process")
            return
        if kind == "memory" and worker.calls and not task.again:  # earlier calls may have taken it
            self._condemn(worker, kind, "took too much memory")
            return
        worker.tasks.popleft()
        task.done(RewardResult(score, components, extracted, error, kind))
        worker.clock.begin()
        worker.calls += 1
        self._pace.took(task.source, seconds)
        if kind == "memory":  # what is left of its memory is in pieces
            self._dismiss(worker)

    def _until_next_look(self) -> float | None:
        """Seconds until something must be looked at; None: there is nothing to do."""
        busy = [worker for worker in self._workers.values() if worker.tasks and not worker.ending]
        if not busy and not self._jobs:
            return None
        now = time.monotonic()
        return max(0.0, min((self._pace.next_look(worker) - now for worker in busy), default=LONGEST_WAIT)) + 0.001

    def _look_at_clocks(self) -> None:
        now = time.monotonic()
        self._jobs = [job for job in self._jobs if not job.is_over(now)]
        for worker in list(self._workers.values()):
            if worker.ending or not worker.ready:
                self._look_at_start_or_end(worker)
            elif worker.tasks and now >= self._pace.next_look(worker):
                self._look_at_call(worker)
        if self._jobs:
            self._pool.look()

    def _look_at_start_or_end(self, worker: Worker) -> None:
        if not self._jobs or worker.pid is None or time.monotonic() < worker.clock.looked + LONGEST_WAIT:
            return
        worker.clock.look(worker.pid)
        if not worker.clock.is_past(START_SECONDS):
            return
        if worker.ending:  # the kernel does not let it go
            self._condemn(worker, "crash", "closed the connection of its process")
        else:
            self._pool.end(worker)

    def _look_at_call(self, worker: Worker) -> None:
        task = worker.tasks[0]
        self._take_results(worker)  # this process may be slower than its workers
        if worker.ending or not worker.tasks or worker.tasks[0] is not task:
            return
        assert worker.pid is not None
        clock, timeout = worker.clock, self._rules.timeout
        clock.look(worker.pid)
        if clock.counted >= timeout:
            self._condemn(worker, "timeout", f"ran past reward.timeout ({timeout:g} s); {NOT_COUNTED}")
        elif clock.is_past(timeout):
            self._condemn(
                worker,
                "timeout",
                f"was not done after {clock.passed:.3g} s, of which {clock.counted:.2g} s count towards reward.timeout "
                f"({timeout:g} s): the machine is too busy; {NOT_COUNTED}",
            )
        elif self._pace.is_late(worker):
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
        """End a worker for what its call did, or an earlier one of that worker."""
        self._blame(worker, kind, what, sure=kind == "timeout")
        self._dismiss(worker)

    def _blame(self, worker: Worker, kind: str, what: str, *, sure: bool) -> None:
        """The call of a worker has no score, or another chance where it may not be its own fault."""
        if worker.tasks:
            task = worker.tasks.popleft()
            if sure or task.again or task.settled:
                task.fail(kind, what)
            else:
                task.again = True
                self._again.append(task)

    def _start_again(self, error: NurseryEndedError) -> None:
        """After the nursery was killed or stopped: any of the calls that were running may have done it."""
        running = any(worker.tasks for worker in self._workers.values())
        self._restarts = 0 if running else self._restarts + 1
        if self._restarts > MOST_RESTARTS:
            raise error
        self._selector.unregister(self._pool.control)
        for worker in list(self._workers.values()):
            self._read_last(worker)
            self._blame(
                worker, "crash", f"ended or stopped the process that workers are started from: {error}", sure=False
            )
            self._remove(worker)
        self._failed_starts = 0
        self._pool.reopen()
        self._selector.register(self._pool.control, selectors.EVENT_READ)

    def _bury(self, worker: Worker, how: str) -> None:
        """A worker ended: its last results count, then the call that was running is to blame."""
        self._read_last(worker)
        alone = not worker.calls
        by_timer = how in TIMER_SIGNALS
        self._blame(worker, "timeout" if by_timer else "crash", f"ended its process ({how})", sure=alone or by_timer)
        self._remove(worker)
        if worker.ready:
            return
        self._failed_starts += 1  # it never came to its first call
        if self._failed_starts >= MOST_FAILED_STARTS:
            raise NurseryEndedError(f"{self._failed_starts} workers in a row ended before their first call, with {how}")

    def _read_last(self, worker: Worker) -> None:
        while worker.tasks and (lines := worker.receive()):
            self._read(worker, lines)

    def _remove(self, worker: Worker) -> None:
        self._give_back(worker, worker.tasks)
        with suppress(KeyError):
            self._selector.unregister(worker.connection)
        worker.connection.close()
        del self._workers[worker.number]
