"""The texts of messages, and tools, as clients write them."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from corerl_gateway.errors import invalid, unsupported
from corerl_gateway.fields import Fields

TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""type of a part -> the field with its text"""

PREFIX = "prefix"
"""key of the last message, the assistant's: true, if the policy continues it"""

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
    return "".join(part_text(part) for part in fields.items(name))


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
    return {"type": "text", "text": part_text(part)}


def with_one_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with one system message, the first, as chat templates take it.

    Further ones at the begin are joined to it. Those later are texts of the user, joined to the user's next to them, so
    that the begin of a conversation stays as it was.
    """
    made: list[dict[str, Any]] = []
    was_system = False
    for message in messages:
        role, is_system = message["role"], message["role"] == "system"
        if is_system and any(each["role"] != "system" for each in made):
            role = "user"
        last = made[-1]["role"] if made else ""
        if role == last and (role == "system" or (role == "user" and (is_system or was_system))):
            made[-1] = {**made[-1], "content": _behind(made[-1]["content"], message["content"])}
        else:
            made.append({**message, "role": role})
        was_system = is_system and role == "user"
    return made


def _behind(before: Any, after: Any) -> Any:
    if isinstance(before, str) and isinstance(after, str):
        return "\n\n".join(filter(None, (before, after)))
    return [*_parts(before), {"type": "text", "text": "\n\n"}, *_parts(after)]


def _parts(content: Any) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


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


def part_text(part: Fields) -> str:
    """The text of a part.

    Raises:
        ApiError: it is no text.
    """
    kind = part.text("type", "text")
    if kind in TEXTS:
        return part.text(TEXTS[kind])
    if kind == "document":
        return _document(part)
    if kind == "search_result":
        texts = (part.text("title", ""), part.text("source", ""), content_text(part) or "")
        return "\n".join(filter(None, texts)) + "\n"
    if kind == "tool_reference":
        return f"The tool {part.text('tool_name')} can be called.\n"
    raise unsupported(part.path("type"), f"the policy reads text and images here, not '{kind}'")


def _document(part: Fields) -> str:
    """The text of a document of Anthropic's dialect, with its title and context."""
    source = part.inner("source")
    if source is None:
        raise invalid(part.path("source"), "an object")
    kind = source.text("type")
    if kind not in ("text", "content"):
        raise unsupported(source.path("type"), "the policy reads text: send the document's text, with type 'text'")
    text = source.text("data") if kind == "text" else content_text(source) or ""
    source.get("media_type")
    return "\n".join(filter(None, (part.text("title", ""), part.text("context", ""), text))) + "\n"


def tool(name: str, description: str, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """A tool for :meth:`corerl.contracts.agents.Model.chat`."""
    empty = {"type": "object", "properties": {}}
    function = {"name": name, "description": description, "parameters": parameters or empty}
    return {"type": "function", "function": function}


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
