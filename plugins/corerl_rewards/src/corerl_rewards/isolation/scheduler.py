"""Assigns calls to workers, and enforces their deadlines."""

import math
import socket
import time
from collections import deque
from collections.abc import Iterable, Sequence

from corerl.terminal import say
from corerl_rewards.isolation import nursery
from corerl_rewards.isolation.clock import STOPPED_SECONDS
from corerl_rewards.isolation.connection import Worker
from corerl_rewards.isolation.crew import WAKEUP, Crew
from corerl_rewards.isolation.jobs import Job, Task
from corerl_rewards.isolation.pace import Pace, Rules
from corerl_rewards.isolation.pool import NurseryEndedError, Pool, how_ended
from corerl_rewards.isolation.worker import READY

CHUNK_SECONDS = 0.02
"""seconds of work that a worker is sent at a time"""
CHUNK_CALLS = 256
CHUNK_BYTES = 1 << 18
START_SECONDS = 30.0
"""seconds in which a worker must start, and end"""
MOST_FAILED_STARTS = 5
MOST_RESTARTS = 3
"""consecutive restarts of the nursery without a running call"""
MOST_TOLD = 10
"""largest number of lines about replaced processes"""
LONGEST_WAIT = 0.5
"""seconds between two checks of the nursery during work"""
TIMER_SIGNALS = ("SIGALRM", "SIGPROF", "SIGVTALRM")
"""signals that end a process by a deadline that it set itself"""


class Scheduler:
    """Used by one thread.

    Attributes:
        jobs: unfinished jobs.

    Args:
        wakeup: readable if there are new jobs.
    """

    def __init__(self, pool: Pool, rules: Rules, wakeup: socket.socket) -> None:
        self.jobs: list[Job] = []
        self._pool = pool
        self._rules = rules
        self._queue: deque[Task] = deque()
        self._again: deque[Task] = deque()
        """tasks that lost their worker, perhaps not by their own fault; each runs alone, in a worker of its own"""
        self._pace = Pace(rules)
        self._failed_starts = 0
        self._restarts = 0
        self._told = 0
        self._crew = Crew(pool, wakeup)

    def take(self, jobs: Sequence[Job]) -> None:
        """Add jobs."""
        if not self.jobs and not self._crew.is_busy:
            self._pace.begin()
        self.jobs += jobs
        for job in jobs:
            self._queue += job.tasks()

    def turn(self) -> bool:
        """Wait for an event and handle it; returns whether there are new jobs.

        Raises:
            NurseryEndedError: the nursery ended or does not answer.
            RunError: the scorers cannot be loaded.
        """
        self._start_workers()
        self._hand_out()
        woken = False
        for source, is_writable in self._crew.wait(self._until_next_look()):
            if source == WAKEUP:
                woken = True
            elif not isinstance(source, Worker):
                self._listen()
            elif is_writable:
                self._crew.send(source)
            else:
                self._take_results(source)
        self._look_at_clocks()
        return woken

    def close(self) -> None:
        """Close all connections."""
        self._crew.close()

    def _listen(self) -> None:
        """Handle the nursery's messages about started and ended workers."""
        for word, number, value in self._pool.messages():
            if word == nursery.END:
                self._bury(self._crew.workers[number], how_ended(value))
            else:
                self._crew.workers[number].pid = value

    def _start_workers(self) -> None:
        """Start the missing workers: those wanted, beside late and ending ones, and a few in reserve."""
        present = sum(not worker.late and not worker.ending for worker in self._crew)
        ready = self._rules.num_workers
        room = self._rules.num_workers + ready + self._rules.max_late_workers - len(self._crew.workers)
        for _ in range(min(self._wanted() + ready - present, room)):
            self._crew.start()

    def _wanted(self) -> int:
        """The number of workers that should score now, beside late ones; one more for each call expected to be late."""
        late = sum(worker.late and not worker.ending for worker in self._crew)
        return self._rules.num_workers + self._pace.still_late(late, len(self._queue))

    def _hand_out(self) -> None:
        """Send calls to the workers, up to the wanted number of workers."""
        alive = self._crew.alive
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
            self._crew.send(worker)

    def _hand_out_again(self) -> None:
        """Start a call that lost its worker again, while no other call runs: a second loss is then its own fault."""
        while self._again and self._again[0].settled:
            self._again.popleft()
        if not self._again or self._crew.is_busy:
            return
        idle = self._crew.alive
        fresh = [worker for worker in idle if not worker.calls]
        if fresh:
            self._give(fresh[0], self._again.popleft())
            self._crew.send(fresh[0])
        elif idle and all(worker.ready for worker in self._crew):
            self._pool.end(idle[0])  # it is replaced

    def _is_old(self, worker: Worker) -> bool:
        return worker.calls >= self._rules.calls_per_worker

    def _fill(self, worker: Worker) -> None:
        """Send a worker enough calls for a moment, and leave the others their share."""
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

    def _take_results(self, worker: Worker) -> None:
        self._read(worker, self._crew.receive(worker))
        if not worker.tasks:
            worker.late = False
            if self._is_old(worker):
                self._pool.end(worker)

    def _read(self, worker: Worker, lines: Sequence[bytearray]) -> None:
        for line in lines:
            if worker.tasks:
                self._take_result(worker, line)
            elif line == READY and not worker.ready:
                worker.ready = True
                self._failed_starts = 0
            else:  # written by a leftover of an earlier call
                self._pool.end(worker)

    def _take_result(self, worker: Worker, line: bytearray) -> None:
        task = worker.tasks[0]
        read = task.read(line)
        if read is None:
            self._condemn(worker, "crash", "wrote into the connection of its process")
            return
        result, seconds = read
        out_of_memory = result.error_kind == "memory"
        if out_of_memory and worker.calls and not task.again:  # earlier calls may have used it
            self._condemn(worker, "memory", "used too much memory")
            return
        worker.tasks.popleft()
        task.done(result)
        worker.clock.begin()
        worker.calls += 1
        self._pace.took(task.source, seconds)
        if out_of_memory:  # its remaining memory is fragmented
            self._dismiss(worker)

    def _until_next_look(self) -> float | None:
        """Seconds until the next check; None if there is nothing to do."""
        busy = [worker for worker in self._crew if worker.tasks and not worker.ending]
        if not busy and not self.jobs:
            return None
        now = time.monotonic()
        return max(0.0, min((self._pace.next_look(worker) - now for worker in busy), default=LONGEST_WAIT)) + 0.001

    def _look_at_clocks(self) -> None:
        now = time.monotonic()
        self.jobs = [job for job in self.jobs if not job.is_over(now)]
        for worker in self._crew:
            if worker.ending or not worker.ready:
                self._look_at_start_or_end(worker)
            elif worker.tasks and now >= self._pace.next_look(worker):
                self._look_at_call(worker)
        if self.jobs:
            self._pool.look()

    def _look_at_start_or_end(self, worker: Worker) -> None:
        if not self.jobs or worker.pid is None or time.monotonic() < worker.clock.looked + LONGEST_WAIT:
            return
        worker.clock.look(worker.pid)
        if not worker.clock.is_past(START_SECONDS):
            return
        if worker.ending:  # it hangs in the kernel
            self._condemn(worker, "crash", "closed the connection of its process")
        else:
            self._pool.end(worker)

    def _look_at_call(self, worker: Worker) -> None:
        task = worker.tasks[0]
        self._take_results(worker)  # this process may be slower than its workers
        if worker.ending or not worker.tasks or worker.tasks[0] is not task:
            return
        assert worker.pid is not None
        worker.clock.look(worker.pid)
        if worker.clock.stopped >= min(STOPPED_SECONDS, self._rules.timeout / 2):
            seconds = f"{worker.clock.stopped:.2g} s"
            self._tell(
                f"a process of the scorers ({worker.pid}) is stopped for {seconds}: another process scores its calls"
            )
            self._condemn(worker, "crash", "was stopped")
        elif over := self._pace.over(worker):
            self._condemn(worker, "timeout", over)
        elif self._pace.is_late(worker):
            self._give_back(worker, list(worker.tasks)[1:])  # it keeps them too; the first result counts
            worker.late = True

    def _give_back(self, worker: Worker, tasks: Iterable[Task]) -> None:
        """Return unstarted calls to the front of the queue, unless they were returned before because the worker is
        late.
        """
        if not worker.late:
            self._queue.extendleft(reversed(list(tasks)))

    def _dismiss(self, worker: Worker) -> None:
        """End a worker, and return its unstarted calls."""
        self._give_back(worker, worker.tasks)
        worker.tasks.clear()
        self._pool.end(worker)

    def _condemn(self, worker: Worker, kind: str, what: str) -> None:
        """End a worker because of its current or an earlier call."""
        self._blame(worker, kind, what, sure=kind == "timeout")
        self._dismiss(worker)

    def _blame(self, worker: Worker, kind: str, what: str, *, sure: bool) -> None:
        """Fail the current call of a worker, or start it again if it may not be its own fault."""
        if worker.tasks:
            task = worker.tasks.popleft()
            if sure or task.again or task.settled:
                task.fail(kind, what)
            else:
                task.again = True
                self._again.append(task)

    def start_again(self, error: NurseryEndedError) -> None:
        """Restart the nursery after it was killed or stopped; any running call may be the cause.

        Raises:
            NurseryEndedError: this happened too often without a running call.
        """
        running = self._crew.is_busy
        self._restarts = 0 if running else self._restarts + 1
        if self._restarts > MOST_RESTARTS:
            raise error
        self._tell(f"{error}: a new process is started and scores its calls")
        for worker in self._crew:
            worker.ending = True  # there is no nursery to order it
            self._read_last(worker)
            self._blame(worker, "crash", f"may have ended or stopped its parent: {error}", sure=False)
            self._remove(worker)
        self._failed_starts = 0
        self._crew.reopen()

    def _tell(self, line: str) -> None:
        """Print a line; limited, because a scorer could cause these lines on purpose."""
        self._told += 1
        if self._told <= MOST_TOLD:
            say(line + ("; further lines are not printed" if self._told == MOST_TOLD else ""))

    def _bury(self, worker: Worker, how: str) -> None:
        """Handle an ended worker: its last results count, then its current call gets the blame."""
        self._read_last(worker)
        kind = "timeout" if how in TIMER_SIGNALS else "crash"
        self._blame(worker, kind, f"ended its process ({how})", sure=kind == "timeout" or not worker.calls)
        self._remove(worker)
        if worker.ready:
            return
        self._failed_starts += 1  # it ended before its first call
        if self._failed_starts >= MOST_FAILED_STARTS:
            raise NurseryEndedError(f"{self._failed_starts} workers in a row ended before their first call, with {how}")

    def _read_last(self, worker: Worker) -> None:
        while worker.tasks and (lines := worker.receive()):
            self._read(worker, lines)

    def _remove(self, worker: Worker) -> None:
        self._give_back(worker, worker.tasks)
        self._crew.remove(worker)
