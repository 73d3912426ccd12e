"""Arguments of tool calls as a chat template takes them: objects, or JSON texts."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from corerl.errors import DataError

Message = Mapping[str, Any]


def with_arguments(messages: Sequence[Message], *, as_text: bool) -> list[dict[str, Any]]:
    """The messages with the arguments of their calls as objects, or as JSON texts."""
    return [_with_arguments(message, as_text=as_text) for message in messages]


def are_texts(render: Callable[[Sequence[Message]], str]) -> bool:
    """Whether a template joins arguments to its text as they are, so that an object fails or shows as Python.

    Args:
        render: renders messages; DataError: the template refuses them.
    """
    call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {"corerl": "turn"}}}
    try:
        text = render([{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}])
    except DataError:
        return True
    return "'corerl'" in text


def _with_arguments(message: Message, *, as_text: bool) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple) or not calls:
        return dict(message)
    return {**message, "tool_calls": [_written(call, as_text=as_text) for call in calls]}


def _written(call: Any, *, as_text: bool) -> Any:
    """A call with its arguments; ``{name, arguments}`` may stand without ``function``."""
    if not isinstance(call, Mapping):
        return call
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _written(call["function"], as_text=as_text)}
    return {**call, "arguments": _arguments(call.get("arguments"), as_text=as_text)} if "name" in call else call


def _arguments(arguments: Any, *, as_text: bool) -> Any:
    if as_text:
        return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments
