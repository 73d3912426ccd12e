"""One episode on a server: messages of OpenEnv's protocol over a WebSocket.

A message is ``{"type": "reset" | "step" | "close", "data": …}``; an answer is ``{"type": "observation", "data":
{"observation", "reward", "done"}}`` or ``{"type": "error", "data": {"message", "code"}}``.
"""

import asyncio
import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, WebSocketException

MIB = 1 << 20
CLOSE_SECONDS = 5.0
SERVER_CLOSE_SECONDS = 1.0


class ServerError(Exception):
    """The server answered with an error, broke the protocol, or is not there.

    Attributes:
        code: of the server's error; '' for the others.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Answer:
    """The answer to a reset or a step; a reward of None counts as 0."""

    observation: Mapping[str, Any]
    reward: float
    done: bool


class Session:
    """One connection, which has an environment of its own on the server.

    Args:
        timeout: seconds for the connection, and for each answer.
    """

    def __init__(self, connection: ClientConnection, timeout: float) -> None:
        self._connection, self._timeout = connection, timeout

    @classmethod
    async def open(cls, url: str, headers: Mapping[str, str], timeout: float, max_mb: float) -> "Session":
        """Connect.

        Raises:
            ServerError: the server is not there, or refuses.
        """
        address = "ws" + url.removeprefix("http").rstrip("/") + "/ws"
        try:
            connection = await connect(
                address,
                additional_headers=dict(headers),
                open_timeout=timeout,
                close_timeout=CLOSE_SECONDS,
                max_size=int(max_mb * MIB),
                proxy=None,
            )
        except (OSError, InvalidHandshake, TimeoutError) as error:
            raise ServerError(f"no connection to {address}: {error or type(error).__name__}") from error
        return cls(connection, timeout)

    async def ask(self, kind: str, data: Mapping[str, Any]) -> Answer:
        """Send a message, and wait for its answer.

        Raises:
            ServerError: the answer is an error, is late or has another shape.
        """
        try:
            async with asyncio.timeout(self._timeout):
                await self._connection.send(json.dumps({"type": kind, "data": dict(data)}))
                text = await self._connection.recv()
        except TimeoutError:
            raise ServerError(f"the server did not answer '{kind}' within {self._timeout:g} s") from None
        except WebSocketException as error:
            raise ServerError(f"the connection ended during '{kind}': {error}") from error
        return read_answer(text)

    async def close(self) -> None:
        """End the session; a server that does not answer is left."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._connection.send(json.dumps({"type": "close"}))
                with contextlib.suppress(TimeoutError):  # the server closes first: closed by both, it logs an error
                    await asyncio.wait_for(self._connection.wait_closed(), SERVER_CLOSE_SECONDS)
                await self._connection.close()
        except (TimeoutError, WebSocketException, OSError):
            self._connection.transport.abort()


def read_answer(text: str | bytes) -> Answer:
    """
    Raises:
        ServerError: it is an error, or has another shape.
    """
    try:
        message = json.loads(text)
        kind, data = message["type"], message["data"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ServerError("the server's answer is no message of OpenEnv's protocol") from None
    if kind == "error" and isinstance(data, Mapping):
        details = f"{data.get('message', '')} {data.get('errors') or ''}".strip()
        raise ServerError(details[:2000], str(data.get("code", "")))
    if kind != "observation" or not isinstance(data, Mapping):
        raise ServerError(f"the server answered '{kind}', not an observation")
    observation, reward = data.get("observation"), data.get("reward")
    if not isinstance(observation, Mapping) or not (reward is None or isinstance(reward, bool | int | float)):
        raise ServerError("the server's observation has another shape than OpenEnv's protocol")
    if not math.isfinite(reward or 0.0):
        raise ServerError(f"the server's reward is {reward}")
    return Answer(observation, float(reward or 0.0), data.get("done") is True)
