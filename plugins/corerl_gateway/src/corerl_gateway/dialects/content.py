"""The texts of messages, and tools, as clients write them."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from corerl_gateway.errors import invalid, unsupported
from corerl_gateway.fields import Fields

TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""type of a part -> the field with its text"""

IMAGES = ("image_url", "input_image", "image")
"""types of parts with an image: chat completions', Responses', Messages'"""


def content_text(fields: Fields, name: str = "content") -> str | None:
    """A text, or parts of one, as one text; None if it is left out.

    Raises:
        ApiError: a part is no text.
    """
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    return "".join(_part_text(part) for part in fields.items(name))


def content(fields: Fields, name: str = "content") -> str | list[dict[str, str]] | None:
    """As :func:`content_text`; with an image, a list of parts of text and images.

    Raises:
        ApiError: a part is neither, or an image is no data URL.
    """
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    return joined([read_part(part) for part in fields.items(name)])


def joined(parts: list[dict[str, str]]) -> str | list[dict[str, str]]:
    """The content with these parts: one text, if none is an image."""
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def read_part(part: Fields) -> dict[str, str]:
    """A part of a content, as text or image.

    Raises:
        ApiError: it is neither, or an image is no data URL.
    """
    kind = part.text("type", "text")
    if kind in IMAGES:
        return {"type": "image", "image": _image_url(part, kind)}
    return {"type": "text", "text": _part_text(part)}


def _image_url(part: Fields, kind: str) -> str:
    """The data URL of an image, which is decoded where the chat is encoded."""
    if kind == "image":
        source = part.inner("source")
        if source is None:
            raise invalid(part.path("source"), "an object")
        if source.text("type") == "base64":
            return f"data:{source.text('media_type')};base64,{source.text('data')}"
        owner, name = source, "url"
    else:
        if part.get("file_id") is not None:
            raise unsupported(part.path("file_id"), "send the image as a data URL")
        inner = part.inner("image_url") if isinstance(part.get("image_url"), dict) else None
        owner, name = (part, "image_url") if inner is None else (inner, "url")
    url = owner.text(name)
    if not url.startswith("data:image/"):
        raise invalid(owner.path(name), "a data URL, data:image/…;base64,…: no image is fetched from a network")
    return url


def _part_text(part: Fields) -> str:
    kind = part.text("type", "text")
    if kind not in TEXTS:
        raise unsupported(part.path("type"), f"the policy reads text and images here, not '{kind}'")
    return part.text(TEXTS[kind])


def tool(name: str, description: str, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """A tool for :meth:`corerl.contracts.agents.Model.chat`."""
    empty = {"type": "object", "properties": {}}
    function = {"name": name, "description": description, "parameters": parameters or empty}
    return {"type": "function", "function": function}


def function_tools(fields: Fields, inner: str) -> list[dict[str, Any]]:
    """The tools of OpenAI's dialects.

    Args:
        inner: field of a tool with its function; '': the tool itself.
    """
    tools = []
    for each in fields.items("tools"):
        if each.text("type", "function") != "function":
            raise unsupported(each.path("type"), "the client's own functions are the only tools")
        function = each.inner(inner) if inner else each
        if function is None:
            raise invalid(each.path(inner), "an object")
        parameters = function.inner("parameters")
        tools.append(
            tool(function.text("name"), function.text("description", ""), parameters.values if parameters else None)
        )
    return tools


def chosen_tools(fields: Fields, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools that ``tool_choice`` leaves: all, or none."""
    choice = fields.get("tool_choice")
    if choice in (None, "auto"):
        return tools
    if choice == "none":
        return []
    raise unsupported("tool_choice", "the policy chooses freely; send 'auto' or 'none'")


def call(number: str, name: str, arguments: str) -> dict[str, Any]:
    """A tool call of a message."""
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls_of(message: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    """(id, name, arguments as text) of each tool call of a message."""
    for each in message.get("tool_calls") or ():
        function = each["function"]
        arguments = function["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        yield each["id"], function["name"], text
