"""Chat messages as text."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Spoken:
    """A message for readers.

    Attributes:
        calls: (name, arguments as JSON) of each tool call.
        name: of the tool that answered, or of the call that a tool answers; '' if unknown.
    """

    role: str
    text: str
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    name: str = ""


def spoken(message: Any) -> Spoken:
    """A message of a file in the form of OpenAI or Anthropic; what is no message becomes text."""
    if not isinstance(message, Mapping):
        return Spoken("", as_text(message))
    content = message.get("content")
    parts = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
    used = [(str(part.get("name", "")), _json(part.get("input"))) for part in parts if part.get("type") == "tool_use"]
    if used and isinstance(content, list):
        content = [part for part in content if part not in parts or part.get("type") != "tool_use"]
    called = message.get("tool_calls")
    calls = [_call(call) for call in called if isinstance(call, Mapping)] if isinstance(called, list) else []
    return Spoken(
        str(message.get("role", "")),
        as_text(content),
        as_text(message.get("reasoning_content")),
        (*calls, *used),
        str(message.get("name") or message.get("tool_call_id") or ""),
    )


def as_text(value: Any) -> str:
    """The text of a message's content (which may be a list of parts) or of a ground truth of any type."""
    if isinstance(value, list):
        return "".join(as_text(part) for part in value)
    if isinstance(value, dict):
        if value.get("type") == "tool_result":
            return as_text(value.get("content"))
        return str(value.get("text", f"[{value.get('type', '…')}]"))
    return "" if value is None else str(value)


def _call(call: Mapping[str, Any]) -> tuple[str, str]:
    function = call.get("function")
    named = function if isinstance(function, Mapping) else call
    return str(named.get("name", "")), _json(named.get("arguments"))


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
