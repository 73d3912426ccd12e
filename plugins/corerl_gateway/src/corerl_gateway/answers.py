"""The latest answers of a session: a client that repeats a request gets the answer that was lost on its way."""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

REMEMBERED = 64
"""answers; a client repeats a request within seconds"""
COUNTS = ("x-stainless-retry-count", "x-retry-count")
"""headers with the number of attempts before this one; the clients of OpenAI and Anthropic send the first"""
KEYS = ("idempotency-key", "x-idempotency-key")
"""headers that are equal for all attempts"""


@dataclass
class Answer:
    """Work on a request, and the number of clients that wait for it."""

    work: "asyncio.Task[bytes]"
    waiting: int = 0


class Answers:
    """Answers by the requests; of equal ones the latest."""

    def __init__(self) -> None:
        self._latest: dict[bytes, Answer] = {}

    def mark(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """Equal for all attempts of a request."""
        keys = "\n".join([path, *(headers.get(name, "") for name in KEYS)])
        return hashlib.blake2b(keys.encode(errors="surrogateescape") + b"\n" + body, digest_size=16).digest()

    @contextlib.contextmanager
    def asked(
        self, mark: bytes, headers: Mapping[str, str], start: "Callable[[], asyncio.Task[bytes]]"
    ) -> "Iterator[asyncio.Task[bytes]]":
        """The work on a request, which ends once no client waits for it; of a repeated request that of the former."""
        answer = self._latest.get(mark) if _is_repeated(headers) else None
        if answer is None or _has_failed(answer.work):
            answer = Answer(start())
        self._latest.pop(mark, None)
        self._latest[mark] = answer
        if len(self._latest) > REMEMBERED:
            del self._latest[next(iter(self._latest))]
        answer.waiting += 1
        try:
            yield answer.work
        finally:
            answer.waiting -= 1
            if not answer.waiting:
                answer.work.cancel()  # of a client that has gone


def _is_repeated(headers: Mapping[str, str]) -> bool:
    """Whether a client has sent the same before. A number of attempts that is none counts as 0."""
    counts = [headers.get(name, "") for name in COUNTS]
    return any(each.isdecimal() and int(each[:9]) > 0 for each in counts) or any(map(headers.get, KEYS))


def _has_failed(work: "asyncio.Task[bytes]") -> bool:
    return work.cancelling() > 0 or (work.done() and (work.cancelled() or work.exception() is not None))
