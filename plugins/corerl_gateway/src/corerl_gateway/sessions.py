"""Sessions: an episode's model, its key, its requests under way, and the memory of its dialects."""

import asyncio
import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from corerl.contracts.agents import Model
from corerl_gateway.answers import Answers
from corerl_gateway.errors import ApiError

T = TypeVar("T")

REMEMBERED = 10_000
"""answers and tool calls of a session; the oldest are forgotten"""

ModelSource = Callable[[Mapping[str, float]], Model]
"""gives the model of a request with these sampling parameters: ``temperature``, ``top_p``, ``top_k``, ``seed``"""


def new_key() -> str:
    """A key of 256 random bits."""
    return f"sk-corerl-{secrets.token_urlsafe(32)}"


class Memory(dict[str, T]):
    """The latest values by name."""

    def __setitem__(self, name: str, value: T) -> None:
        super().__setitem__(name, value)
        if len(self) > REMEMBERED:
            del self[next(iter(self))]


@dataclass(eq=False)
class Session:
    """What one key opens.

    Attributes:
        number: first part of its path; '' for paths without one.
        under_way: tasks of requests.
        answers: the latest, for clients that repeat a request.
        conversations: id of an answer of the Responses dialect -> the messages up to it.
        arguments: id of a tool call -> (its arguments as given to the client, the text that the policy wrote).
    """

    source: ModelSource
    answers: Answers = field(default_factory=Answers, repr=False, kw_only=True)
    number: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    key: str = field(default_factory=new_key, repr=False)
    under_way: set["asyncio.Task[Any]"] = field(default_factory=set)
    conversations: Memory[list[dict[str, Any]]] = field(default_factory=Memory, repr=False)
    arguments: Memory[tuple[Any, str]] = field(default_factory=Memory, repr=False)

    def start(self, work: "asyncio.Task[Any]") -> None:
        """Have a request end with the session."""
        self.under_way.add(work)
        work.add_done_callback(self.under_way.discard)


class Sessions:
    """The sessions that are open."""

    def __init__(self) -> None:
        self._open: dict[str, Session] = {}

    def add(self, session: Session) -> None:
        self._open[session.number] = session

    def has(self, session: Session) -> bool:
        return self._open.get(session.number) is session

    def remove(self, number: str) -> None:
        """Close a session; its requests are cancelled."""
        session = self._open.pop(number, None)
        for work in list(session.under_way) if session else ():
            work.cancel()

    def find(self, number: str, headers: Mapping[str, str]) -> Session:
        """The session of a request.

        Raises:
            ApiError: 404: no open session has this number; 401: the key is another one.
        """
        session = self._open.get(number)
        if session is None:
            raise ended()
        if not any(hmac.compare_digest(key, session.key.encode()) for key in _given_keys(headers)):
            raise ApiError(401, "the key is wrong or missing: send 'Authorization: Bearer KEY'", code="invalid_api_key")
        return session


def ended() -> ApiError:
    """The error of a request to an episode that is over."""
    return ApiError(404, "no episode has this address: it has ended, or never was", code="episode_not_found")


def _given_keys(headers: Mapping[str, str]) -> list[bytes]:
    scheme, _, key = headers.get("Authorization", "").partition(" ")
    keys = [key.strip() if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")]
    return [key.encode(errors="surrogateescape") for key in keys]
