"""The run's end of the connection to a worker: sent requests and received lines."""

import contextlib
import socket
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from corerl_rewards.isolation.clock import Clock
from corerl_rewards.isolation.worker import LONGEST_LINE


@dataclass(eq=False)
class Worker:
    """A process that scores its requests in the order of sending.

    Attributes:
        pid: None until the process is forked.
        ready: the process waits for requests.
        tasks: sent and unanswered requests.
        low: with at most this many tasks, the worker is sent more.
        clock: of the first task; before the worker is ready, of its start; during its end, of the end.
        late: the first task takes so long that the other tasks were also given to other workers.
        ending: the nursery was ordered to end the process.
        calls: number of answered requests.
    """

    number: int
    connection: socket.socket
    pid: int | None = None
    ready: bool = False
    tasks: deque[Any] = field(default_factory=deque)
    low: int = 0
    clock: Clock = field(default_factory=Clock)
    late: bool = False
    ending: bool = False
    calls: int = 0
    unsent: bytearray = field(default_factory=bytearray)
    unread: bytearray = field(default_factory=bytearray)

    def send(self) -> None:
        """Send as much of ``unsent`` as the connection accepts now."""
        with contextlib.suppress(BlockingIOError, ConnectionError):  # the nursery reports its end
            del self.unsent[: self.connection.send(self.unsent)]

    def receive(self) -> list[bytearray] | None:
        """Complete lines; empty if there is none yet, None after the last one.

        Reads only to the end of one line, because a worker that writes without end must not block the reader.
        """
        lines: list[bytearray] = []
        while not lines:
            try:
                data = self.connection.recv(1 << 16)
            except BlockingIOError:
                return []
            except ConnectionError:
                return None
            if not data:
                return None
            self.unread += data
            *lines, self.unread = self.unread.split(b"\n")
            if len(self.unread) > 2 * LONGEST_LINE:
                lines.append(self.unread)  # not a complete line either
                self.unread = bytearray()
        return lines
