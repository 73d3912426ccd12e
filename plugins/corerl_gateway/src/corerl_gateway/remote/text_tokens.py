"""Tokens of a server that has none to show: four bytes of text each, about as long as tokens of a model.

A chat is lines of JSON: the fields of the request's body beside messages, if there are any, and the messages. So a
chat that continues another one begins with its tokens.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

END = 0
"""ends no text; samples without a text have it"""
SIZE = 4
"""bytes of a token"""
BEFORE = b"\x01"
"""before the bytes of a token in its number, which so keeps their leading zeros"""


class TextTokenizer:
    """See :class:`corerl.contracts.tokenizers.ChatTokenizer`."""

    tokenizer: Any = None
    template_source = "the server"
    stop_token_ids: tuple[int, ...] = (END,)
    special_tokens: Mapping[str, int] = {}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        location: object,
        *,
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The chat as lines."""
        fields = {"chat_template_kwargs": dict(template_kwargs)} if template_kwargs else {}
        return "".join(lines_of(messages, fields))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Each line begins a token."""
        return [[token for line in _lines(text) for token in _tokens(line)] for text in texts]

    encode_inside = encode

    def spelled(self, text: str) -> Mapping[str, int]:
        """None: the server has the tokens."""
        return {}

    def unmarked(self, text: str) -> str:
        """The text."""
        return text

    def opening(self, token_ids: Sequence[int]) -> str:
        """None: the server has the chat template."""
        return ""

    def decode(self, token_ids: Sequence[Sequence[int]], *, skip_special_tokens: bool = True) -> list[str]:
        """The contents of messages; other tokens as they are."""
        return ["".join(map(_shown, _lines(text_of(row)))) for row in token_ids]

    def end_of_turn_fault(self) -> str | None:
        """None."""
        return None

    def model_files(self) -> dict[str, bytes]:
        """None: the model is elsewhere."""
        return {}


def lines_of(messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a chat.

    Args:
        fields: of the body, beside the messages.
    """
    if fields:
        yield line_of({"body": fields})
    yield from map(line_of, messages)


def line_of(value: Mapping[str, Any]) -> str:
    """One line."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character, as some servers write it
        text = json.dumps(value, separators=(",", ":"))
    return text + "\n"


def chat_of(text: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(messages, fields) of the lines of a chat.

    Raises:
        ValueError: the text is none.
    """
    lines = [json.loads(line) for line in _lines(text)]
    if not lines or not all(isinstance(line, dict) for line in lines) or not text.endswith("\n"):
        raise ValueError("no lines of JSON objects")
    fields = lines.pop(0)["body"] if "body" in lines[0] else {}
    if not lines or not all("role" in line for line in lines):
        raise ValueError("no messages")
    return lines, fields


def text_of(token_ids: Sequence[int]) -> str:
    """The text of tokens; no text of those that are none."""
    parts = (token.to_bytes((token.bit_length() + 7) // 8) for token in token_ids if token > 0)
    return b"".join(part[1:] for part in parts if part[:1] == BEFORE).decode(errors="replace")


def _lines(text: str) -> list[str]:
    """With their ends; other characters end no line."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _tokens(line: str) -> Iterator[int]:
    data = line.encode()
    for start in range(0, len(data), SIZE):
        yield int.from_bytes(BEFORE + data[start : start + SIZE])


def _shown(line: str) -> str:
    try:
        message = json.loads(line)
    except ValueError:
        return line
    content = message.get("content", line) if isinstance(message, dict) else line
    return content if isinstance(content, str) else ""
