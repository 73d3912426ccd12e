"""Results to come: a request gets a number at once, and its result later."""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from corerl_tinker.errors import UserError

KEPT = 3600.0
"""seconds for which a result is kept that nobody has read"""
KEPT_READ = 60.0
"""seconds for which a result is kept that was read: the answer may have been lost"""


@dataclass(frozen=True)
class Answer:
    """A result: JSON, or a binary message."""

    body: bytes
    is_binary: bool = False

    @classmethod
    def of(cls, **values: Any) -> "Answer":
        return cls(json.dumps(values).encode())


@dataclass(eq=False)
class Future:
    """The result of a request.

    Attributes:
        request_id: unique in the server.
        owner: of the session, which may have ended.
        more: further fields of the promise.
        ended, read: seconds of the monotonic clock; None while it is computed, or not read.
    """

    request_id: str
    session_id: str
    owner: str
    more: Mapping[str, Any] = field(default_factory=dict)
    answer: Answer | None = None
    ended: float | None = None
    read: float | None = None
    event: asyncio.Event = field(default_factory=asyncio.Event)

    def promise(self) -> Answer:
        return Answer.of(request_id=self.request_id, **self.more)

    def end(self, answer: Answer) -> None:
        """The first end counts."""
        if self.answer is None:
            self.answer, self.ended = answer, time.monotonic()
            self.event.set()

    def fail(self, error: BaseException) -> None:
        category = "user" if isinstance(error, UserError) else "server"
        self.end(Answer.of(error=str(error) or type(error).__name__, category=category))


class Futures:
    """The results of all sessions."""

    def __init__(self) -> None:
        self._all: dict[str, Future] = {}

    def find(self, request_id: str) -> Future | None:
        return self._all.get(request_id)

    def add(self, future: Future) -> Future:
        self._all[future.request_id] = future
        return future

    def pending(self) -> list[Future]:
        return [future for future in self._all.values() if future.answer is None]

    def forget(self) -> None:
        """Drop results that were read, or that nobody reads."""
        now = time.monotonic()
        for name, future in list(self._all.items()):
            unread = future.ended is not None and now - future.ended > KEPT
            if unread or (future.read is not None and now - future.read > KEPT_READ):
                del self._all[name]
