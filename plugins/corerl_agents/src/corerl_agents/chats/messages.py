"""Chat messages as OpenAI's chat completions have them, in the form in which two chats are compared."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from corerl.data import Message
from corerl.errors import DataError
from corerl_agents.turns import REASONING_KEYS

IGNORED = ("cache_control", "id", "status", "index")
"""keys of messages that are no part of a chat"""


def readable(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages with texts, or parts of text and images, as contents, without empty keys.

    Raises:
        DataError: no messages, a message without a role, or a content of another kind.
    """
    if not messages:
        raise DataError("a chat needs messages, and has none")
    return _named([_readable(message, place) for place, message in enumerate(messages)])


def _named(messages: list[Message]) -> list[Message]:
    """Results of tools with the names of the tools, which templates may show, and OpenAI's older form as today's."""
    names, numbers, named = dict[str, str](), dict[str, str](), list[Message]()
    for place, given in enumerate(messages):
        message = dict(given)
        function = message.pop("function_call", None)
        if function is not None and message["role"] == "assistant" and "tool_calls" not in message:
            message["tool_calls"] = [{"id": f"older{place:04d}", "type": "function", "function": function}]
        for call in message.get("tool_calls", ()):
            name, number = call["function"]["name"], str(call.get("id"))
            names[number], numbers[name] = name, number
        if message["role"] == "function":
            message |= {"role": "tool", "tool_call_id": numbers.get(str(message.get("name")), "")}
        if message["role"] == "tool" and (name := names.get(str(message.get("tool_call_id")), "")):
            message.setdefault("name", name)
        named.append(message)
    return named


def _readable(message: Mapping[str, Any], place: int) -> Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise DataError(f"message {place} of a chat must be a mapping with a role, not {message!r:.60}")
    kept = {key: value for key, value in message.items() if not _is_empty(value)}
    calls, function = kept.get("tool_calls"), kept.get("function_call")
    if function is not None and not _is_call({"function": function}):
        raise DataError(f"message {place} of a chat: function_call must be {{name, arguments}}")
    if calls is not None and not (isinstance(calls, Sequence) and all(map(_is_call, calls))):
        raise DataError(f"message {place} of a chat: tool_calls must be a list of {{function: {{name, arguments}}}}")
    content = _content(message.get("content"), place)
    if message["role"] == "assistant" and not isinstance(content, str):
        raise DataError(f"message {place} of a chat is the assistant's and has an image")
    return {**kept, "content": content}


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | Sequence | Mapping) and not value)


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)


def _content(content: Any, place: int) -> Any:
    """A content as one text; with images as parts of text and images."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        parts = [_part(part, place) for part in content]
        if all(part["type"] == "text" for part in parts):
            return "".join(part["text"] for part in parts)
        return parts
    raise DataError(f"message {place} of a chat: content must be a text, not {type(content).__name__}")


def _part(part: Any, place: int) -> dict[str, str]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return {"type": "text", "text": str(part["text"])}
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    image = part.get(kind) if isinstance(part, Mapping) and kind in ("image", "image_url") else None
    if isinstance(image, Mapping):
        image = image.get("url")
    if isinstance(image, str):
        return {"type": "image", "image": image}
    raise DataError(f"message {place} of a chat has a part of type {kind!r}: chats of agents take text and images")


def digests(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """One digest for each number of first messages, 0 included: of equal chats with equal tools it is equal.

    Chats are equal if they differ in nothing but ids of tool calls, reasoning, the order of keys, the spelling of
    arguments as JSON, and white space around the assistant's content.
    """
    found = [_digest(b"", [dict(tool) for tool in tools])]
    for key in _keys(messages):
        found.append(_digest(found[-1], key))
    return found


def extended(digest: bytes, reply: Message) -> bytes:
    """The digest of a chat with this digest and the assistant's reply to it."""
    [key] = _keys(readable([reply]))
    return _digest(digest, key)


def _keys(messages: Sequence[Message]) -> Iterator[Any]:
    places: dict[str, int] = {}
    for message in messages:
        if message["role"] == "assistant":
            calls = message.get("tool_calls", ())
            places = {str(call.get("id")): place for place, call in enumerate(calls)}
            yield [message["content"].strip(), [_call(call["function"]) for call in calls]]
        else:
            other = {key: value for key, value in message.items() if key not in (*IGNORED, "tool_call_id")}
            yield [other, places.get(str(message.get("tool_call_id")))]


def _call(function: Mapping[str, Any]) -> Any:
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return [function["name"], arguments]
    return [function["name"], {} if arguments is None else arguments]


def _digest(before: bytes, value: Any) -> bytes:
    try:
        text = json.dumps(value, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"a chat must consist of JSON values ({error})") from error
    return hashlib.blake2b(before + text.encode(), digest_size=16).digest()


def reasoning_of(message: Mapping[str, Any]) -> str:
    """The reasoning in a message, '' without any."""
    return next((value for key in REASONING_KEYS if isinstance(value := message.get(key), str)), "")
