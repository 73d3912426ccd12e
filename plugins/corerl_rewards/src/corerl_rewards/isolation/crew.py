"""All workers, with one place to wait for them."""

import selectors
import socket
from collections.abc import Iterator
from contextlib import suppress

from corerl_rewards.isolation.connection import Worker
from corerl_rewards.isolation.pool import Pool

WAKEUP, NURSERY = "wakeup", "nursery"


class Crew:
    """Used by one thread.

    Attributes:
        workers: by number, from the request for a worker until its end.

    Args:
        wakeup: an additional descriptor to wait for.
    """

    def __init__(self, pool: Pool, wakeup: socket.socket) -> None:
        self.workers: dict[int, Worker] = {}
        self._pool = pool
        self._selector = selectors.DefaultSelector()
        self._selector.register(wakeup, selectors.EVENT_READ, WAKEUP)
        self._selector.register(pool.control, selectors.EVENT_READ, NURSERY)

    def __iter__(self) -> Iterator[Worker]:
        """The workers; workers may end during the iteration."""
        return iter(list(self.workers.values()))

    @property
    def alive(self) -> list[Worker]:
        """Workers that take requests; the nursery's message may arrive later than the worker's own."""
        return [worker for worker in self.workers.values() if worker.ready and worker.pid and not worker.ending]

    @property
    def is_busy(self) -> bool:
        """Whether a worker has an unanswered request."""
        return any(worker.tasks for worker in self.workers.values())

    def start(self) -> None:
        """Request one more worker."""
        worker = self._pool.start()
        self.workers[worker.number] = worker
        self._selector.register(worker.connection, selectors.EVENT_READ, worker)

    def wait(self, seconds: float | None) -> Iterator[tuple[Worker | str, bool]]:
        """Yield each worker, ``WAKEUP`` or ``NURSERY`` that can be read, or, with True, written."""
        for key, events in self._selector.select(seconds):
            if isinstance(key.data, Worker) and key.data.number not in self.workers:
                continue  # it ended a moment ago
            if events & selectors.EVENT_WRITE:
                yield key.data, True
            if events & selectors.EVENT_READ:
                yield key.data, False

    def send(self, worker: Worker) -> None:
        """Send as much as the connection accepts; the rest is sent when the connection can be written."""
        worker.send()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.unsent else 0)
        if self._selector.get_key(worker.connection).events != events:
            self._selector.modify(worker.connection, events, worker)

    def receive(self, worker: Worker) -> list[bytearray]:
        """Complete lines; a worker with a closed connection is ended."""
        lines = worker.receive()
        if lines is None:  # closed by the call, or by the end of the process
            self._selector.unregister(worker.connection)
            self._pool.end(worker)
        return lines or []

    def remove(self, worker: Worker) -> None:
        """It ended."""
        with suppress(KeyError):
            self._selector.unregister(worker.connection)
        worker.connection.close()
        del self.workers[worker.number]

    def reopen(self) -> None:
        """Start another nursery, without workers."""
        self._selector.unregister(self._pool.control)
        self._pool.reopen()
        self._selector.register(self._pool.control, selectors.EVENT_READ, NURSERY)

    def close(self) -> None:
        """Close all connections."""
        for worker in self.workers.values():
            worker.connection.close()
        self._selector.close()
