"""The run's end of a worker: what it was sent, and what has come back."""

import contextlib
import socket
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from corerl_rewards.isolation.clock import Clock
from corerl_rewards.isolation.worker import LONGEST_LINE


@dataclass(eq=False)
class Worker:
    """A process that scores what it was sent, in that order.

    Attributes:
        pid: None until it was forked.
        ready: it has begun to wait for requests.
        tasks: sent, and not answered.
        low: with no more of them it is sent some more.
        clock: of the first of them; before the worker is ready, of its start; at its end, of that.
        late: the first of them takes so long that the others were given to somebody else as well.
        ending: the nursery was told to end it.
        calls: so many it has answered.
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
        """As much of ``unsent`` as the connection takes now."""
        with contextlib.suppress(BlockingIOError, ConnectionError):  # the nursery tells when it ends
            del self.unsent[: self.connection.send(self.unsent)]

    def receive(self) -> list[bytearray] | None:
        """Lines that have come; empty when none has come whole, None when there will be none any more.

        It reads no further than to the end of one: a worker that writes without end must not keep its reader.
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
                lines.append(self.unread)  # which is no line either
                self.unread = bytearray()
        return lines
