"""A server that answers each request with the next part of a script, and keeps the requests."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Answer:
    """An answer.

    Attributes:
        cut: bytes of the body that are not sent before the connection closes.
        seconds: before it.
    """

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: int = 0
    seconds: float = 0.0

    def written(self) -> bytes:
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        head = f"HTTP/1.1 {self.status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        return head.encode() + b"\r\n" + body[: len(body) - self.cut]


@dataclass
class Script:
    """The last answer is given for ever; a function gets the request's body.

    Attributes:
        requests: (path, headers, JSON of the body) of each.
        closed: number of connections that the client closed before the answer.
    """

    answers: list[Any]
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    closed: int = 0
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append((head[0].split()[1], headers, json.loads(body) if body else None))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        answer = answer(self.requests[-1][2]) if callable(answer) else answer
        leaving = asyncio.ensure_future(reader.read(1))
        done, _ = await asyncio.wait([leaving], timeout=answer.seconds)
        self.closed += bool(done)
        leaving.cancel()
        writer.write(answer.written())
        writer.close()


@asynccontextmanager
async def serving(*answers: Any) -> Any:
    """A script that is served at its ``url``."""
    script = Script(list(answers))
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server:
        yield script
