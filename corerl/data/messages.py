"""Chat messages and tools of rows, checked: texts, parts of text, image and video, calls of tools."""

import json
from collections.abc import Mapping
from typing import Any

from corerl.contracts.options import did_you_mean
from corerl.data.report import Location
from corerl.errors import DataError

Message = dict[str, Any]
"""``role``, ``content`` and further fields for the chat template (``name``, ``tool_calls``, …)"""

ROLES = ("system", "developer", "user", "assistant", "tool")

MEDIA = {"image": "image", "image_url": "image", "input_image": "image", "video": "video", "video_url": "video"}
"""type of a part -> medium"""
_FIELDS = ("image", "image_url", "video_url", "frames", "bytes", "url", "path")
_SHOWN = 40


def without_nulls(value: Any) -> Any:
    """A value without the null fields of its mappings, at every depth: Arrow adds the fields of other rows."""
    if isinstance(value, Mapping):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def check_messages(value: object, location: Location, column: str) -> list[Message]:
    """Chat messages without null fields; parts of text alone become one text.

    Raises:
        DataError: not a list, no message, a message without role or content, an unknown role, a part of another type.
    """
    where = f"{location}, column {column!r}"
    if value is None or value == []:
        raise DataError(f"{where}: has no messages")
    if not isinstance(value, list):
        raise DataError(f"{where}: must be a list of messages {{role, content}}, not {shown(value)}")
    return [_message(message, f"{where}, message {number}") for number, message in enumerate(value)]


def check_tools(value: object, location: Location, column: str) -> list[dict[str, Any]]:
    """Tools as ``{"type": "function", "function": {"name", …}}``; the column, or each tool, may be JSON text.

    Raises:
        DataError: it is no list of tools.
    """
    where = f"{location}, column {column!r}"
    given = _decoded(value.strip() or "[]", where) if isinstance(value, str) else value or []
    if not isinstance(given, list):
        raise DataError(f"{where}: must be a list of tools, or its JSON text, not {shown(given)}")
    return [_tool(_decoded(each, where) if isinstance(each, str) else each, where) for each in given]


def _tool(value: Any, where: str) -> dict[str, Any]:
    function = value.get("function", value) if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DataError(f"{where}: must have tools {{type, function: {{name, …}}}}, not {shown(value)}")
    return dict(value) if "function" in value else {"type": "function", "function": dict(value)}


def _decoded(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: is no JSON text ({error})") from error


def _message(value: object, where: str) -> Message:
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: must be a struct {{role, content}}, not {shown(value)}")
    given = {key: item for key, item in value.items() if item is not None}
    if "function_call" in given:  # the older name of a single call
        given["tool_calls"] = [{"type": "function", "function": given.pop("function_call")}]
    if calls := _calls(given.pop("tool_calls", []), where):
        given = {"content": "", **given, "tool_calls": calls}
    for key in ("role", "content"):
        if key not in given:
            raise DataError(f"{where}: has no {key}")
    role, content = given["role"], given["content"]
    if not isinstance(role, str):
        raise DataError(f"{where}: role must be a string, not {shown(role)}")
    if role not in ROLES:
        hint = did_you_mean(role, ROLES)
        raise DataError(f"{where}: unknown role {role!r}{hint}; roles are {', '.join(ROLES)}")
    return given if isinstance(content, str) else {**given, "content": _parts(content, where)}


def _calls(value: Any, where: str) -> list[Any]:
    calls = value if isinstance(value, list) else [None]
    for call in calls:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise DataError(
                f"{where}: tool_calls must be a list of {{function: {{name, arguments}}}}, not {shown(value)}"
            )
    return calls


def _parts(content: Any, where: str) -> Any:
    """Parts ``{"type": "text", "text"}``, ``{"type": "image"}`` and ``{"type": "video"}``, the last two perhaps with a
    value of their own under the same name; one text if all are texts.
    """
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        raise DataError(f"{where}: content must be a string, or parts {{type, …}}, not {shown(content)}")
    parts = [_part(part, where) for part in content]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = part.get("type", "text")
    if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind not in MEDIA:
        raise DataError(f"{where}: has a part {shown(dict(part))}; parts are text, image and video")
    medium = MEDIA[kind]
    own = next((part[name] for name in (kind, medium, *_FIELDS) if part.get(name) is not None), None)
    if isinstance(own, Mapping):
        own = next((own[name] for name in _FIELDS if own.get(name) is not None), own)
    rest = {key: each for key, each in part.items() if key in ("fps", "sample_fps") and each is not None}
    return {"type": medium, **({} if own is None else {medium: own, **rest})}


def shown(value: object) -> str:
    """A value in an error message."""
    if value is None:
        return "null"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}"
