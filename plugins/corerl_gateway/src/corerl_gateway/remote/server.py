"""Requests to a server: deadlines, bounded retries, errors without keys."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from corerl.errors import DeadlineError, RefusedError, RunError, TooLongError
from corerl_gateway.remote.options import KEY, ServerOptions, check_url

MOST_BYTES = 256 * 2**20
"""of an answer"""
CONNECTING = 20.0
"""deadline of a connection, in seconds"""
SHORTEST_WAIT, LONGEST_WAIT = 0.05, 60.0
"""seconds between two attempts"""
SHOWN = 300
"""characters of a server's message"""
AGAIN = (408, 409, 425, 429)
"""statuses below 500 after which a request is repeated"""
_LONG = re.compile(rb"context_length|context length|too long")


@dataclass(frozen=True)
class Reply:
    """An answer of HTTP."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Server:
    """A server.

    Raises:
        ConfigError: its URL or key cannot be used.
    """

    def __init__(self, options: ServerOptions) -> None:
        check_url(options.url)
        self._options, self._key = options, options.key()
        self._session: aiohttp.ClientSession | None = None
        self._users = 0
        self._has_answered = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Keep connections open; uses may overlap."""
        if self._session is None:
            headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECTING)
            self._session = aiohttp.ClientSession(
                headers=headers,
                timeout=timeout,
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                session, self._session = self._session, None
                await session.close()

    async def ask(self, url: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """The JSON object of an answer: of POST, or without a body of GET.

        Raises:
            RefusedError: the server refuses this request.
            DeadlineError: the answer takes longer than ``timeout``.
            RunError: the server cannot be reached, refuses the key, lacks the path or the model, or answers no JSON.
        """
        try:
            async with asyncio.timeout(self._options.timeout):
                reply = await self._reply(url, body)
        except TimeoutError:
            raise DeadlineError(
                f"{url} had no answer after {KEY}.timeout = {self._options.timeout:g} s, retries included"
            ) from None
        if reply.status != 200:
            raise self._error(url, reply)
        try:
            answer = json.loads(reply.body)
        except (ValueError, RecursionError):
            raise RunError(f"{url} answered no JSON, but {reply.body[:60]!r}") from None
        if not isinstance(answer, dict):
            raise RunError(f"{url} answered no JSON object, but {reply.body[:60]!r}")
        return answer

    async def _reply(self, url: str, body: Mapping[str, Any] | None) -> Reply:
        """The last of the attempts."""
        for attempt in range(self._options.max_retries + 1):
            is_last = attempt == self._options.max_retries
            try:
                reply = await self._attempt(url, body)
            except (aiohttp.ClientError, OSError) as error:
                if is_last or not self._has_answered:
                    raise RunError(f"the connection to {url} failed: {_reason(error)}") from None
                await asyncio.sleep(_pause(attempt, {}))
                continue
            self._has_answered = True
            if is_last or not _may_succeed(reply):
                return reply
            await asyncio.sleep(_pause(attempt, reply.headers))
        raise AssertionError

    async def _attempt(self, url: str, body: Mapping[str, Any] | None) -> Reply:
        assert self._session is not None
        method = "GET" if body is None else "POST"
        async with self._session.request(method, url, json=body, allow_redirects=False) as response:
            read = bytearray()
            async for chunk in response.content.iter_any():
                read += chunk
                if len(read) > MOST_BYTES:
                    raise RunError(f"{url} answered more than {MOST_BYTES} bytes")
            return Reply(response.status, response.headers, bytes(read))

    def _error(self, url: str, reply: Reply) -> RunError:
        status, said = reply.status, self._said(reply.body)
        if status in (401, 403):  # the message may quote the key
            return RunError(f"{url} refuses the key (status {status}): set {KEY}.api_key to ${{env:NAME}}")
        if 300 <= status < 400:
            return RunError(f"{url} answers with a redirect (status {status}): set {KEY}.url to the server's own URL")
        if status == 404:
            return RunError(f"{url} is not there, or has no such model (status 404): {said}")
        if status in (400, 413, 422):
            kind = TooLongError if status == 413 or _LONG.search(reply.body) else RefusedError
            return kind(f"{url} refuses a request (status {status}): {said}")
        attempts = f" after {self._options.max_retries} retries" if _may_succeed(reply) else ""
        return RunError(f"{url} answers with status {status}{attempts}: {said}")

    def _said(self, body: bytes) -> str:
        """The server's message without the key, on one line."""
        text = body.decode(errors="replace")
        try:
            found = json.loads(body)
            error = found.get("error", found)
            text = str(error.get("message") or error.get("detail") or error) if isinstance(error, dict) else str(error)
        except (ValueError, AttributeError, RecursionError):
            pass
        line = " ".join(text.split())
        return (line if self._key is None else line.replace(self._key, "…"))[:SHOWN] or "no message"


def _may_succeed(reply: Reply) -> bool:
    """Whether the same request may be answered later."""
    if reply.headers.get("x-should-retry", "").lower() == "false":
        return False
    return reply.status in AGAIN or reply.status >= 500


def _pause(attempt: int, headers: Mapping[str, str]) -> float:
    """Seconds before the next attempt: those that the server demands, or doubled ones."""
    try:
        demanded = float(headers.get("Retry-After", ""))
    except ValueError:  # a date, or nothing
        demanded = 0.5 * 2**attempt
    return min(demanded, LONGEST_WAIT) if demanded >= SHORTEST_WAIT else SHORTEST_WAIT


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
