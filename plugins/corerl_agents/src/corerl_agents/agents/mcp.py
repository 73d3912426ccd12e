"""Tools of MCP servers: sessions over the pipes of a command or over HTTP."""

import asyncio
import contextlib
import functools
import shlex
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TextIO

from corerl.errors import ConfigError, RunError, described
from corerl.foreign import LoopThread, contained
from corerl_agents.agents.toolbox import Result, Tool, as_text, timed

SDK = "the MCP SDK"
END_SECONDS = 15.0
"""the SDK ends a server's process within about 7 s, first gently"""


class Sessions:
    """Sessions with MCP servers, in an event loop of their own, so that all of them end whenever the run's loop ends.

    Args:
        servers: command lines and URLs.
        start_timeout: seconds for the start of a session and the list of its tools.
        timeout: seconds for one call.
    """

    def __init__(self, servers: Sequence[str], start_timeout: float, timeout: float) -> None:
        try:
            from mcp import Client  # noqa: F401
        except ImportError as error:
            remedy = "MCP servers need the package mcp, version 2: pip install 'corerl-agents[mcp]'"
            raise ConfigError("rollout.agent", remedy) from error
        self._servers, self._start_timeout, self._timeout = tuple(servers), start_timeout, timeout
        self._loop = LoopThread("corerl-mcp")
        self._open: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def tools(self) -> AsyncIterator[list[Tool]]:
        """The tools of all servers, of sessions that end with the block.

        Raises:
            RunError: a server does not start, or gives no tools.
        """
        opened: list[_Session] = []
        try:
            for server in self._servers:
                session = _Session(server)
                opened.append(session)
                await self._loop.call(functools.partial(self._start, session), SDK)
            yield [_ServerTool(session, each, self) for session in opened for each in session.listed]
        finally:
            await asyncio.shield(
                asyncio.gather(*(self._loop.call(functools.partial(self._end, each), SDK) for each in opened))
            )

    async def call(self, session: "_Session", name: str, arguments: Mapping[str, Any]) -> Result:
        """The answer to a call."""
        called = functools.partial(_called, session, name, arguments)
        return await self._loop.call(lambda: timed(called, self._timeout), SDK)

    def close(self) -> None:
        """End all sessions, the processes behind them and the event loop.

        Raises:
            RunError: they have not ended after 15 s.
        """
        try:
            self._loop.close(self._end_all(), END_SECONDS)
        except TimeoutError:
            raise RunError(f"sessions with MCP servers had not ended after {END_SECONDS:g} s") from None

    async def _start(self, session: "_Session") -> None:
        task = asyncio.create_task(session.live())
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        session.task = task
        try:
            async with asyncio.timeout(self._start_timeout):
                await asyncio.wait({task, asyncio.ensure_future(session.ready.wait())}, return_when="FIRST_COMPLETED")
        except TimeoutError:
            late = f"had not started after {self._start_timeout:g} s"
            raise RunError(f"the MCP server {session.server!r} {late}") from None
        if session.error is not None:
            raise RunError(f"the MCP server {session.server!r} does not start: {session.error}")

    async def _end(self, session: "_Session") -> None:
        session.over.set()
        if session.task is not None:
            if not session.ready.is_set():
                session.task.cancel()
            await asyncio.wait({session.task}, timeout=END_SECONDS)

    async def _end_all(self) -> None:
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(set(self._open), timeout=END_SECONDS)


class _Session:
    """One session, which one task opens and closes: the SDK demands that."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.ready, self.over = asyncio.Event(), asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.client: Any = None
        self.listed: list[Any] = []
        self.error: str | None = None

    async def live(self) -> None:
        """Open the session, keep it until ``over``, and close it."""
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
            try:
                await contained(lambda: self._live(log), "its session")
            except Exception as error:
                log.seek(0)
                lines = log.read().split("\n")[-5:]
                self.error = " ".join([described(error), *filter(None, map(str.strip, lines))])
            finally:
                self.ready.set()

    async def _live(self, log: TextIO) -> None:
        from mcp import Client, StdioServerParameters, stdio_client

        command = [] if self.server.startswith(("http://", "https://")) else shlex.split(self.server)
        target: Any = self.server
        if command:
            target = stdio_client(StdioServerParameters(command=command[0], args=command[1:]), errlog=log)
        async with Client(target) as client:
            cursor = None
            while True:
                page = await client.list_tools(cursor=cursor)
                self.listed += page.tools
                if (cursor := page.next_cursor) is None:
                    break
            self.client = client
            self.ready.set()
            await self.over.wait()


async def _called(session: _Session, name: str, arguments: Mapping[str, Any]) -> Result:
    found = await session.client.call_tool(name, dict(arguments))
    texts = [getattr(part, "text", None) or f"({part.type})" for part in found.content]
    text = "\n".join(texts) or as_text(found.structured_content or "")
    return Result(f"error: {text}" if found.is_error else text, found.is_error)


class _ServerTool:
    """See :class:`corerl_agents.agents.toolbox.Tool`."""

    def __init__(self, session: _Session, listed: Any, sessions: Sessions) -> None:
        self._session, self._sessions, self._name = session, sessions, listed.name
        function = {"name": listed.name, "description": listed.description or "", "parameters": listed.input_schema}
        self.schema: Mapping[str, Any] = {"type": "function", "function": function}

    async def __call__(self, arguments: Mapping[str, Any]) -> Result:
        """The server checks the arguments."""
        return await self._sessions.call(self._session, self._name, arguments)
