"""Chat messages and tools of rows, checked."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from corerl.contracts.options import did_you_mean
from corerl.data.report import Location
from corerl.errors import DataError

Message = dict[str, Any]
"""``role``, ``content`` and further fields for the chat template (``name``, ``tool_calls``, …)"""

ROLES = ("system", "developer", "user", "assistant", "tool")
_SHOWN = 40


def without_nulls(value: Any) -> Any:
    """A value without the null fields of its mappings, at every depth: Arrow adds the fields of other rows."""
    if isinstance(value, Mapping):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def check_messages(value: object, location: Location, column: str) -> list[Message]:
    """Chat messages without null fields; a missing content beside tool calls is empty.

    Raises:
        DataError: not a list, no message, a message without role or content, an unknown role.
    """
    where = f"{location}, column {column!r}"
    if value is None or value == []:
        raise DataError(f"{where}: has no messages")
    if not isinstance(value, list):
        raise DataError(f"{where}: must be a list of messages {{role, content}}, not {shown(value)}")
    return [_message(message, f"{where}, message {number}") for number, message in enumerate(value)]


def check_tools(value: object, location: Location) -> list[dict[str, Any]]:
    """Tools as ``{"type": "function", "function": {"name", …}}``; the column, or each tool, may be JSON text.

    Raises:
        DataError: it is no list of tools.
    """
    where = f"{location}, column 'tools'"
    try:
        given = json.loads(value.strip() or "[]") if isinstance(value, str) else value or []
        if not isinstance(given, list):
            raise DataError(f"{where}: must be a list of tools, or its JSON text, not {shown(given)}")
        tools = [json.loads(each) if isinstance(each, str) else each for each in given]
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: is no JSON text ({error})") from error
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise DataError(f"{where}: must have tools {{type, function: {{name, …}}}}, not {shown(tool)}")
    return [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]


def functions_of(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The functions that messages call: {name, arguments} each."""
    calls = [call for message in messages for call in message.get("tool_calls") or () if isinstance(call, Mapping)]
    return [call.get("function", call) for call in calls]


def unshown(messages: Sequence[Mapping[str, Any]], text: str) -> Iterator[str]:
    """The parts of messages that a rendered chat lacks, by the names of functions that they call or offer."""
    if not all(str(function.get("name")) in text for function in functions_of(messages)):
        yield "tool calls"
    if not all(name in text for name in _offered(messages)):
        yield "tools of a message"


def _offered(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Names of the functions whose schemas are a key of a message, as in rows for GLM-4; of JSON text all of it."""
    for message in messages:
        given = message.get("tools") or message.get("functions") or ()
        for tool in [given] if isinstance(given, str) else given if isinstance(given, list) else ():
            function = tool.get("function", tool) if isinstance(tool, Mapping) else tool
            yield str(function.get("name") if isinstance(function, Mapping) else function)


def _message(value: object, where: str) -> Message:
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: must be a struct {{role, content}}, not {shown(value)}")
    given = {key: item for key, item in value.items() if item is not None and (key != "tool_calls" or item)}
    if not given.keys().isdisjoint(("tool_calls", "function_call")):
        given = {"content": "", **given}
    for key in ("role", "content"):
        if key not in given:
            raise DataError(f"{where}: has no {key}")
    role, content = given["role"], given["content"]
    if not isinstance(role, str):
        raise DataError(f"{where}: role must be a string, not {shown(role)}")
    if not isinstance(content, str) and not _is_parts(content):
        raise DataError(f"{where}: content must be a string, or parts {{type, …}}, not {shown(content)}")
    if role not in ROLES:
        hint = did_you_mean(role, ROLES)
        raise DataError(f"{where}: unknown role {role!r}{hint}; roles are {', '.join(ROLES)}")
    return given if isinstance(content, str) else {**given, "content": without_nulls(content)}


def _is_parts(content: Any) -> bool:
    """Whether content is a list of {type, …}."""
    return isinstance(content, list) and all(
        isinstance(part, Mapping) and isinstance(part.get("type"), str) for part in content
    )


def shown(value: object) -> str:
    """A value in an error message."""
    if value is None:
        return "null"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}"
