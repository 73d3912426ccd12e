"""The blocks of a message of Anthropic's dialect become messages."""

from typing import Any

from corerl_gateway.dialects.content import call, content, joined, part_text, read_part
from corerl_gateway.dialects.tools import arguments_of
from corerl_gateway.errors import invalid, unsupported
from corerl_gateway.fields import Fields
from corerl_gateway.sessions import Session

BILLING = "x-anthropic-billing-header:"
"""begin of a text that Claude Code sends as its system's first; it differs from request to request"""


def system_text(fields: Fields, name: str = "system") -> str:
    """The text of ``system``, without a header that is no part of the prompt."""
    value = fields.get(name)
    parts = [value] if isinstance(value, str) else list(map(part_text, fields.items(name)))
    return "".join(part for part in parts if not part.startswith(BILLING))


def read_blocks(fields: Fields, session: Session) -> list[dict[str, Any]]:
    """The messages that one message of the client holds: the results of tools are messages of their own."""
    role = fields.text("role")
    if role not in ("user", "assistant", "system"):
        raise invalid(fields.path("role"), "user, assistant or system")
    value = fields.get("content")
    if role == "system":
        return [{"role": role, "content": system_text(fields, "content")}]
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    blocks = list(fields.items("content"))
    return [_read_turn(blocks, session)] if role == "assistant" else _read_user(blocks)


def _read_turn(blocks: list[Fields], session: Session) -> dict[str, Any]:
    texts, reasoning, calls = [], [], []
    for block in blocks:
        kind = block.text("type")
        if kind == "text":
            texts.append(block.text("text"))
        elif kind == "thinking":
            reasoning.append(block.text("thinking"))
        elif kind == "tool_use":
            calls.append(call(block.text("id"), block.text("name"), _arguments(block, session)))
        elif kind != "redacted_thinking":
            raise unsupported(block.path("type"), f"the policy's turns have no '{kind}'")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if any(reasoning):
        message["reasoning_content"] = "".join(reasoning)
    return message | ({"tool_calls": calls} if calls else {})


def _arguments(block: Fields, session: Session) -> str:
    """The text of a call's arguments: the policy's own, if the client sends back what it got."""
    given = block.inner("input")
    value = {} if given is None else given.values
    return arguments_of(session, block.text("id"), value, value)


def _read_user(blocks: list[Fields]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    said: list[dict[str, str]] = []
    for block in blocks:
        if block.text("type") == "tool_result":
            messages += _user(said)
            said = []
            answer = content(block) or ""
            result = {"role": "tool", "content": answer, "tool_call_id": block.text("tool_use_id")}
            messages.append({**result, "is_error": True} if block.flag("is_error") else result)
        else:
            said.append(read_part(block))
    return messages + _user(said)


def _user(parts: list[dict[str, str]]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": joined(parts)}] if parts else []
