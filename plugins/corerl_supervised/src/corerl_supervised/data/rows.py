"""Rows of parquet and JSONL files: conversations, and the responses that a row gives to its prompt.

====================================  =================================================================
columns                               conversation
====================================  =================================================================
``messages``                          the chat; the assistant's messages are learned
``prompt`` and a response             a text or a list of messages each; a text is a message of the user or the
                                      assistant, and the assistant's messages of the response are learned
a response that is a whole chat       without ``prompt``: the messages that ``chosen`` and ``rejected`` share
====================================  =================================================================
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corerl.contracts.options import did_you_mean
from corerl.data.files import Row, read_parquet
from corerl.data.messages import Message, check_messages, check_tools, without_nulls
from corerl.data.report import Location
from corerl.errors import ConfigError, DataError
from corerl_check.jsonl import read_jsonl

RESPONSES = ("response", "completion")
COLUMNS = ("messages", "prompt", *RESPONSES, "chosen", "rejected", "margin", "score", "tools")
"""columns that are read"""


@dataclass(frozen=True)
class Conversation:
    """A chat, with the column that its errors name.

    Attributes:
        prompt: number of its first messages that are not learned.
        tools: schemas, for the chat template.
    """

    messages: Sequence[Message]
    location: Location
    column: str = "messages"
    prompt: int = 0
    tools: Sequence[Mapping[str, Any]] = ()

    @property
    def learned(self) -> list[int]:
        """The assistant's messages that are no part of the prompt."""
        numbered = enumerate(self.messages)
        return [number for number, message in numbered if message["role"] == "assistant" and number >= self.prompt]


def read_rows(files: Sequence[str]) -> list[Row]:
    """The rows of parquet and JSONL files, in order.

    Raises:
        ConfigError: no file is given.
        DataError: a file is missing, damaged, empty, or of another kind.
    """
    if not files:
        raise ConfigError("data.train_files", "must name at least one parquet or JSONL file")
    return [row for file in files for row in _read(file)]


def _read(file: str) -> list[Row]:
    suffix = Path(file).suffix
    if suffix == ".parquet":
        rows = read_parquet(file, (), COLUMNS)
        if not rows[0][1]:
            return read_parquet(file, COLUMNS[:1])  # an error that names the columns
        return [(place, {name: without_nulls(value) for name, value in row.items()}) for place, row in rows]
    if suffix in (".jsonl", ".json"):
        return read_jsonl(file)
    raise DataError(f"{file}: files of rows end in .parquet, .jsonl or .json")


def conversation(row: Mapping[str, Any], location: Location) -> Conversation:
    """Of ``messages``, or of ``prompt`` and ``response`` (or ``completion``).

    Raises:
        DataError: there are no such columns, or one is wrong.
    """
    if "messages" not in row and (column := next((name for name in RESPONSES if name in row), None)) is not None:
        return answered(row, column, location)
    require(row, "messages", location)
    messages = _chat(row["messages"], location, "messages")
    return Conversation(messages, location, tools=check_tools(row.get("tools"), location))


def answered(row: Mapping[str, Any], column: str, location: Location) -> Conversation:
    """The prompt with the response of a column.

    Raises:
        DataError: a column is missing or wrong, or the response does not begin with the assistant.
    """
    require(row, "prompt", location)
    require(row, column, location)
    prompt = _messages(row["prompt"], "user", location, "prompt")
    response = _messages(row[column], "assistant", location, column)
    return _continued(prompt, response, row, location, column)


def compared(row: Mapping[str, Any], location: Location) -> tuple[Conversation, Conversation]:
    """The prompt with each of ``chosen`` and ``rejected``; without ``prompt`` both are whole chats.

    Raises:
        DataError: a column is missing or wrong.
    """
    for column in ("chosen", "rejected"):
        require(row, column, location)
    if row.get("prompt") is not None:
        return answered(row, "chosen", location), answered(row, "rejected", location)
    if isinstance(row["chosen"], str) or isinstance(row["rejected"], str):
        require(row, "prompt", location)
        raise DataError(f"{location}, column 'prompt': is null, but chosen and rejected are texts that answer it")
    chosen, rejected = (_chat(row[name], location, name) for name in ("chosen", "rejected"))
    most = min(len(chosen), len(rejected)) - 1
    shared = next((at for at in range(most) if chosen[at] != rejected[at]), most)
    return (
        _continued(chosen[:shared], chosen[shared:], row, location, "chosen"),
        _continued(rejected[:shared], rejected[shared:], row, location, "rejected"),
    )


def number(row: Mapping[str, Any], column: str, location: Location, default: float | None = None) -> float:
    """The number of a column.

    Args:
        default: of a missing column or a null; None: there must be a number.

    Raises:
        DataError: it is missing, no number, or not finite.
    """
    if default is not None and row.get(column) is None:
        return default
    require(row, column, location)
    value = row[column]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{location}, column {column!r}: must be a number, not {value!r:.40}")
    if not math.isfinite(value):
        raise DataError(f"{location}, column {column!r}: is {value}, and must be finite")
    return float(value)


def require(row: Mapping[str, Any], column: str, location: Location) -> None:
    """Raise DataError if a row has no such column."""
    if column not in row:
        hint = did_you_mean(column, row)
        raise DataError(f"{location}: has no {column!r}{hint}; its columns are {', '.join(row) or 'none'}")


def _messages(value: object, role: str, location: Location, column: str) -> list[Message]:
    return [{"role": role, "content": value}] if isinstance(value, str) else _chat(value, location, column)


def _chat(value: object, location: Location, column: str) -> list[Message]:
    """Messages without images, which no command of this plugin reads.

    Raises:
        DataError: they are no messages, or have an image or a video.
    """
    messages = check_messages(value, location, column)
    for message in messages:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] != "text":
                raise DataError(
                    f"{location}, column {column!r}: has an {part['type']}, and this command reads text alone"
                )
    return messages


def _continued(
    prompt: Sequence[Message], response: Sequence[Message], row: Mapping[str, Any], location: Location, column: str
) -> Conversation:
    where = f"{location}, column {column!r}"
    if not prompt:
        raise DataError(f"{where}: has no prompt before the response")
    if response[0]["role"] != "assistant":
        raise DataError(f"{where}: must begin with the assistant's answer, not with role {response[0]['role']!r}")
    if prompt[-1]["role"] == "assistant":
        raise DataError(f"{where}: answers a prompt that ends with the assistant, and would be a second turn of it")
    tools = check_tools(row.get("tools"), location)
    return Conversation([*prompt, *response], location, column, len(prompt), tools)
