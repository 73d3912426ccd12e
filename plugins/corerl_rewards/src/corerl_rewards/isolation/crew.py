"""The workers, and the one place to wait for all of them."""

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
        workers: by their numbers, from the moment that one was asked for until it ended.

    Args:
        wakeup: is waited for as well.
    """

    def __init__(self, pool: Pool, wakeup: socket.socket) -> None:
        self.workers: dict[int, Worker] = {}
        self._pool = pool
        self._selector = selectors.DefaultSelector()
        self._selector.register(wakeup, selectors.EVENT_READ, WAKEUP)
        self._selector.register(pool.control, selectors.EVENT_READ, NURSERY)

    def __iter__(self) -> Iterator[Worker]:
        """The workers; they may end meanwhile."""
        return iter(list(self.workers.values()))

    @property
    def alive(self) -> list[Worker]:
        """Those that take requests; the nursery may tell of one later than it does itself."""
        return [worker for worker in self.workers.values() if worker.ready and worker.pid and not worker.ending]

    @property
    def is_busy(self) -> bool:
        """Whether one has a request that it has not answered."""
        return any(worker.tasks for worker in self.workers.values())

    def start(self) -> None:
        """Ask for one more."""
        worker = self._pool.start()
        self.workers[worker.number] = worker
        self._selector.register(worker.connection, selectors.EVENT_READ, worker)

    def wait(self, seconds: float | None) -> Iterator[tuple[Worker | str, bool]]:
        """What can be read, or with True written: a worker, ``WAKEUP`` or ``NURSERY``."""
        for key, events in self._selector.select(seconds):
            if isinstance(key.data, Worker) and key.data.number not in self.workers:
                continue  # it ended a moment ago
            if events & selectors.EVENT_WRITE:
                yield key.data, True
            if events & selectors.EVENT_READ:
                yield key.data, False

    def send(self, worker: Worker) -> None:
        """As much as the connection takes; the rest when it can be written."""
        worker.send()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.unsent else 0)
        if self._selector.get_key(worker.connection).events != events:
            self._selector.modify(worker.connection, events, worker)

    def receive(self, worker: Worker) -> list[bytearray]:
        """Lines that have come; a worker whose connection is closed is ended."""
        lines = worker.receive()
        if lines is None:  # the call closed it, or is about to end
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
        """Start another nursery; there are no workers."""
        self._selector.unregister(self._pool.control)
        self._pool.reopen()
        self._selector.register(self._pool.control, selectors.EVENT_READ, NURSERY)

    def close(self) -> None:
        """Close all connections."""
        for worker in self.workers.values():
            worker.connection.close()
        self._selector.close()
