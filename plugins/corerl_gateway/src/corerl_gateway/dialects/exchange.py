"""An exchange: one request in a dialect, and its answer."""

import functools
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from corerl.contracts.agents import ChatReply, Model
from corerl.rollout.player import all_or_none
from corerl_gateway.dialects.allowed import read_stop_ids, refuse_unknown, texts_of
from corerl_gateway.errors import ApiError
from corerl_gateway.fields import Fields
from corerl_gateway.sessions import Session

HARMLESS = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_p": 0.0}
"""sampling parameters -> value without an effect"""
SAMPLING = ("temperature", "top_p", "top_k", "seed", *HARMLESS)
MOST_SAMPLES = 128


class Exchange(Protocol):
    """Reads a request, asks the model, writes the answer. Making one checks the whole request.

    Attributes:
        stream: the answer is a stream of events.
        sampling: sampling parameters of the request, by name.
    """

    stream: bool
    sampling: Mapping[str, float]

    def __init__(self, fields: Fields, session: Session) -> None: ...

    async def ask(self, model: Model) -> None:
        """Get the model's replies."""
        ...

    def document(self) -> Mapping[str, Any]:
        """The answer as one JSON object."""
        ...

    def events(self) -> Iterator[bytes]:
        """The answer as events."""
        ...

    @staticmethod
    def error(error: ApiError) -> Mapping[str, Any]:
        """An error as a JSON object."""
        ...

    @staticmethod
    def failure(error: ApiError) -> bytes:
        """An error as an event, once the status 200 has been sent."""
        ...


class ChatExchange:
    """The common part of the dialects of chats. A dialect sets the attributes.

    Attributes:
        n: independent replies.
        replies: of the model, once it was asked.
    """

    def __init__(self, fields: Fields, session: Session) -> None:
        refuse_unknown(fields)
        self.fields, self.session = fields, session
        self.name = fields.text("model", "policy")
        self.stream = fields.flag("stream")
        self.sampling: Mapping[str, float] = read_sampling(fields)
        self.created = int(time.time())
        self.messages: list[dict[str, Any]] = []
        self.tools: list[dict[str, Any]] = []
        self.max_tokens: int | None = None
        self.stop: tuple[str, ...] = ()
        self._stop_ids = read_stop_ids(fields)
        self.n = 1
        self.replies: Sequence[ChatReply] = ()

    async def ask(self, model: Model) -> None:
        """See :class:`Exchange`."""
        stop = (*self.stop, *texts_of(self._stop_ids, model.tokenizer))
        chat = functools.partial(model.chat, self.messages, tools=self.tools, max_tokens=self.max_tokens, stop=stop)
        self.replies = [await chat()] if self.n == 1 else await all_or_none(chat() for _ in range(self.n))

    @property
    def prompt_tokens(self) -> int:
        return self.replies[0].prompt_tokens

    @property
    def completion_tokens(self) -> int:
        return sum(len(reply.sampled.token_ids) for reply in self.replies)


def read_sampling(fields: Fields) -> dict[str, float]:
    """The sampling parameters that a request gives, but those without an effect."""
    given = {name: fields.number(name) for name in SAMPLING}
    return {name: value for name, value in given.items() if value is not None and value != HARMLESS.get(name)}


def is_cut(reply: ChatReply) -> bool:
    """Whether a reply ended by a limit of its length, or was aborted."""
    return reply.sampled.finish_reason != "stop"


def new_id(prefix: str) -> str:
    """A name for an answer or a part of one."""
    return f"{prefix}{secrets.token_hex(12)}"


def dump(value: Any) -> bytes:
    """JSON; half characters, which a token may end with, as escapes."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def event(value: Any, name: str = "") -> bytes:
    """One event of a stream."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + dump(value) + b"\n\n"
