"""Messages in the one form that chat templates get: parts of text, image and video, calls under ``tool_calls``."""

from collections.abc import Mapping, Sequence
from typing import Any

from corerl.errors import DataError

MEDIA = {"image": "image", "image_url": "image", "input_image": "image", "video": "video", "video_url": "video"}
"""type of a part -> medium"""

_TEXTS = ("text", "input_text", "output_text")
_FIELDS = ("image", "image_url", "video_url", "frames", "bytes", "url", "path")
_OTHERS = ("audio", "audio_url", "input_audio", "file")
_RATES = ("fps", "sample_fps")


def normalized(messages: Sequence[Mapping[str, Any]], location: object) -> list[dict[str, Any]]:
    """The messages; parts of text alone are one text.

    A part is ``{"type": "text", "text"}``, ``{"type": "image"}`` or ``{"type": "video"}``, the last two perhaps with a
    value of their own under the same name.

    Raises:
        DataError: a part of another type, or calls of another form; ``location`` is named.
    """
    return [_message(message, f"{location}, message {number}") for number, message in enumerate(messages)]


def own_medium(messages: Sequence[Mapping[str, Any]]) -> str:
    """The type of the first part of normalized messages with a medium of its own; '' without one."""
    contents = [each["content"] for each in messages if isinstance(each.get("content"), list)]
    kinds = (part["type"] for parts in contents for part in parts if part["type"] in part)
    return next((kind for kind in kinds if kind != "text"), "")


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    made = dict(message)
    if made.get("function_call") and not made.get("tool_calls"):  # the older name of a single call
        made["tool_calls"] = [{"type": "function", "function": made.pop("function_call")}]
    if made.get("tool_calls"):
        _check_calls(made["tool_calls"], where)
    if isinstance(made.get("content"), list):
        parts = [_part(part, where) for part in made["content"]]
        is_text = all(part["type"] == "text" for part in parts)
        made["content"] = "".join(part["text"] for part in parts) if is_text else parts
    return made


def _check_calls(calls: Any, where: str) -> None:
    for call in calls if isinstance(calls, list | tuple) else [None]:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            wanted = "a list of {function: {name, arguments}}"
            raise DataError(f"{where}: tool_calls must be {wanted}, not {calls!r:.100}")


def _part(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = part.get("type")
    others = (*MEDIA, *_OTHERS) if kind in _TEXTS else ("text",)
    if lost := [name for name in others if part.get(name)]:
        raise DataError(f"{where}: a part of type {kind} has '{lost[0]}', too: give it a part of its own")
    if kind in _TEXTS and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind not in MEDIA:
        raise DataError(f"{where}: has a part {dict(part)!r:.100}; parts are text, image and video")
    medium = MEDIA[kind]
    own = next((part[name] for name in (medium, *_FIELDS) if part.get(name) is not None), None)
    if isinstance(own, Mapping):
        own = next((own[name] for name in _FIELDS if own.get(name) is not None), own)
    rates = {name: part[name] for name in _RATES if part.get(name) is not None}
    return {"type": medium, **({} if own is None else {medium: own, **rates})}
