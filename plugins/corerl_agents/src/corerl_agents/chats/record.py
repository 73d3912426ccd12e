"""The chats of one episode as a tree: the turn that a request continues."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corerl.contracts.token_columns import TokenValues
from corerl.data import Message
from corerl.errors import DataError
from corerl_agents.chats.messages import digests, extended, readable, reasoning_of

PREFIX = "prefix"
"""key of the last message, the assistant's: true, if the policy continues it"""


@dataclass(frozen=True)
class Request:
    """A chat to answer.

    Attributes:
        messages: see :func:`corerl_agents.chats.messages.readable`.
        digests: of each number of first messages.
        begun: the turn of the policy that the client has begun; None: it has not.
    """

    messages: list[Message]
    tools: Sequence[Mapping[str, Any]]
    digests: list[bytes]
    begun: Message | None = None

    @property
    def begun_text(self) -> str:
        """The content of the begun turn."""
        return "" if self.begun is None else str(self.begun["content"])

    @classmethod
    def read(cls, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> "Request":
        """Raises DataError for messages that are no chat."""
        given = readable(messages)
        found = digests(given, tools)
        if not given[-1].get(PREFIX) or given[-1]["role"] != "assistant":
            return cls(given, tools, found)
        if given[-1].get("tool_calls"):
            raise DataError("a turn with tool calls cannot be continued: leave out its 'prefix'")
        if reasoning_of(given[-1]) and not given[-1]["content"]:
            raise DataError("a turn with reasoning alone cannot be continued: leave out the reasoning")
        return cls(given[:-1], tools, found[:-1], given[-1])

    def with_begun(self) -> "Request":
        """The same with the begun turn as a message."""
        return self if self.begun is None else Request.read([*self.messages, {**self.begun, PREFIX: False}], self.tools)


@dataclass(frozen=True, eq=False)
class Turn:
    """A turn of the policy.

    Attributes:
        parent: the turn whose tokens the request continues.
        read: the tokens of the request behind those of the parent; without a parent all of them.
        sampled: the policy's tokens.
        reply: the message that the client received.
        length: messages of the chat, the reply included.
        stable: length and digest of the text with which every later text of the chat begins, if the template leaves
            earlier messages as they are.
        media: of the request's tokens; None: the tokenizer knows no media.
    """

    parent: "Turn | None"
    read: tuple[int, ...]
    sampled: tuple[int, ...]
    reply: Message
    length: int
    stable: tuple[int, bytes]
    media: Mapping[str, TokenValues] | None = None

    def path(self) -> "list[Turn]":
        """From the first turn to this one."""
        turns: list[Turn] = []
        turn: Turn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.parent
        return turns[::-1]

    def token_ids(self) -> list[int]:
        """All tokens, the sampled ones included."""
        return [token_id for turn in self.path() for part in (turn.read, turn.sampled) for token_id in part]


@dataclass
class Record:
    """All turns of an episode."""

    _turns: dict[bytes, list[Turn]] = field(default_factory=dict)

    def add(self, request: Request, turn: Turn) -> None:
        """Keep a turn under its chat."""
        self._turns.setdefault(extended(request.digests[-1], turn.reply), []).append(turn)

    def find(self, request: Request) -> Turn | None:
        """The turn with the longest chat that the request begins with; the latest of several."""
        for length in range(len(request.messages), 0, -1):
            if request.messages[length - 1]["role"] == "assistant":
                for turn in reversed(self._turns.get(request.digests[length], ())):
                    if _thinks_alike(turn, request.messages):
                        return turn
        return None


def _thinks_alike(turn: Turn, messages: Sequence[Message]) -> bool:
    """Whether the reasoning that the client sends back is what it received; a client may leave it out."""
    for each in turn.path():
        given = reasoning_of(messages[each.length - 1])
        if given and given.strip() != reasoning_of(each.reply).strip():
            return False
    return True
