"""Conversion of the library's messages to CoreRL's, and of the policy's text to the library's, with tool calls of Qwen:

<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from verifiers.types import Response, ResponseMessage, ToolCall

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)

TOOLS = """\
# Tools

You may call one or more of these functions:
<tools>
{tools}
</tools>

For each call write a JSON object with the function's name and its arguments:
<tool_call>
{{"name": <name>, "arguments": <arguments>}}
</tool_call>"""


def from_library(messages: Sequence[Any]) -> list[dict[str, str]]:
    """Roles and texts.

    Raises:
        ValueError: a message holds content other than text.
    """
    return [{"role": str(message.role), "content": _text(message)} for message in messages]


def answer_of(ground_truth: Any) -> str:
    """A ground truth as the text that rubrics expect: numbers, lists and mappings as JSON, None as ''.

    >>> answer_of("4"), answer_of(4), answer_of({"low": 1}), answer_of(None)
    ('4', '4', '{"low": 1}', '')
    """
    if ground_truth is None or isinstance(ground_truth, str):
        return ground_truth or ""
    return json.dumps(ground_truth, ensure_ascii=False, default=str)


def described_tools(messages: list[dict[str, str]], tools: Sequence[Any]) -> list[dict[str, str]]:
    """The prompt with a description of the tools in its system message."""
    if not tools:
        return messages
    functions = [
        {"type": "function", "function": tool.model_dump(include={"name", "description", "parameters"})}
        for tool in tools
    ]
    text = TOOLS.format(tools="\n".join(map(json.dumps, functions)))
    if messages and messages[0]["role"] == "system":
        return [{"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def response_of(text: str, *, with_tools: bool) -> tuple[Response, int]:
    """The policy's turn as the answer of a model, and the number of malformed calls."""
    calls = [_call(number, written) for number, written in enumerate(_CALL.findall(text))] if with_tools else []
    message = ResponseMessage(
        content=_CALL.sub("", text).strip() if calls else text,
        tool_calls=[call for call, _ in calls] or None,
        finish_reason="tool_calls" if calls else "stop",
        is_truncated=False,
    )
    return Response(id="", created=0, model="policy", message=message), sum(malformed for _, malformed in calls)


def _call(number: int, written: str) -> tuple[ToolCall, bool]:
    """A tool call, and whether it is malformed; a malformed call keeps its text as arguments, for the environment's
    error.
    """
    try:
        call = json.loads(written)
        return ToolCall(id=f"call_{number}", name=call["name"], arguments=json.dumps(call["arguments"])), False
    except (ValueError, LookupError, TypeError):
        return ToolCall(id=f"call_{number}", name="", arguments=written), True


def _text(message: Any) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    parts = [part.get("text") if isinstance(part, dict) else getattr(part, "text", None) for part in content or ()]
    if any(part is None for part in parts):
        raise ValueError(f"a message of the environment, with the role {message.role}, holds more than text")
    return "\n".join(str(part) for part in parts)
