"""The items of a request of the Responses dialect become messages."""

from collections.abc import Mapping
from typing import Any

from corerl_gateway.dialects.chat_completions import ROLES
from corerl_gateway.dialects.content import call, content, content_text
from corerl_gateway.dialects.tools import custom_call
from corerl_gateway.errors import invalid, unsupported
from corerl_gateway.fields import Fields
from corerl_gateway.sessions import Session


def read_input(fields: Fields, session: Session) -> list[dict[str, Any]]:
    """The messages of ``input``. Reasoning, text and calls that follow each other are one turn of the policy."""
    value = fields.get("input")
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    messages: list[dict[str, Any]] = []
    for item in fields.items("input"):
        _read_item(item, messages, session)
    if not messages:
        raise invalid("input", "a text or a list of at least one item")
    return messages


def _read_item(item: Fields, messages: list[dict[str, Any]], session: Session) -> None:
    kind = item.text("type", "message")
    if kind == "message":
        _read_message(item, messages)
    elif kind in ("function_call", "custom_tool_call"):
        turn, number = _turn(messages, "tool_calls"), item.text("call_id")
        if kind == "custom_tool_call":
            made = custom_call(session, number, item)
        else:
            made = call(number, item.text("name"), item.text("arguments"))
        turn["tool_calls"] = [*turn.get("tool_calls", ()), made]
    elif kind in ("function_call_output", "custom_tool_call_output"):
        output = content(item, "output")
        messages.append({"role": "tool", "content": output or "", "tool_call_id": item.text("call_id")})
    elif kind == "reasoning":
        parts = list(item.items("content")) or list(item.items("summary"))
        if reasoning := "".join(part.text("text") for part in parts):
            _turn(messages, "reasoning_content")["reasoning_content"] = reasoning
    else:
        raise unsupported(item.path("type"), f"send messages, function calls and their outputs, not '{kind}'")


def _read_message(item: Fields, messages: list[dict[str, Any]]) -> None:
    role = item.text("role")
    if role not in ROLES:
        raise invalid(item.path("role"), "one of system, developer, user, assistant")
    said = content_text(item) if role == "assistant" else content(item)
    if said is None:
        raise invalid(item.path("content"), "a text or a list of parts")
    if role == "assistant":
        _turn(messages, "content")["content"] = said
    else:
        messages.append({"role": ROLES[role], "content": said})


ORDER = ("reasoning_content", "content", "tool_calls")
"""of the parts of a turn"""


def _turn(messages: list[dict[str, Any]], part: str) -> dict[str, Any]:
    """The policy's turn that a part belongs to: the last message, if the part may follow what that has, else a new one.

    Calls may follow calls.
    """
    if messages and messages[-1]["role"] == "assistant" and _may_follow(messages[-1], part):
        return messages[-1]
    messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _may_follow(turn: Mapping[str, Any], part: str) -> bool:
    later = ORDER[ORDER.index(part) :] if part != "tool_calls" else ()
    return not any(turn.get(each) for each in later)
