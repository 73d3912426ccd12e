"""The events of an item of the Responses dialect."""

from collections.abc import Iterator, Mapping
from typing import Any

TEXT_EVENTS = {"output_text": "response.output_text", "reasoning_text": "response.reasoning_text"}
"""type of a part -> prefix of its events"""
LEFT_OUT: Mapping[str, Mapping[str, Any]] = {
    "message": {"content": []},
    "reasoning": {"content": []},
    "function_call": {"arguments": ""},
    "custom_tool_call": {"input": ""},
}
"""type of an item -> fields that come in events of their own"""


def item_events(item: Mapping[str, Any], index: int) -> Iterator[dict[str, Any]]:
    """From the begin of an item to its end."""
    begun = {**item, **LEFT_OUT[item["type"]], "status": "in_progress"}
    yield {"type": "response.output_item.added", "output_index": index, "item": begun}
    place = {"item_id": item["id"], "output_index": index}
    if item["type"] == "function_call":
        prefix, arguments = "response.function_call_arguments", item["arguments"]
        yield {"type": f"{prefix}.delta", **place, "delta": arguments}
        yield {"type": f"{prefix}.done", **place, "arguments": arguments, "name": item["name"]}
    elif item["type"] == "custom_tool_call":
        prefix = "response.custom_tool_call_input"
        yield {"type": f"{prefix}.delta", **place, "delta": item["input"]}
        yield {"type": f"{prefix}.done", **place, "input": item["input"]}
    else:
        yield from _part_events(item["content"][0], {**place, "content_index": 0})
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _part_events(part: Mapping[str, Any], place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    prefix, extra = TEXT_EVENTS[part["type"]], {}
    if part["type"] == "output_text":
        extra = {"logprobs": part["logprobs"]}
    yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
    yield {"type": f"{prefix}.delta", **place, "delta": part["text"], **extra}
    yield {"type": f"{prefix}.done", **place, "text": part["text"], **extra}
    yield {"type": "response.content_part.done", **place, "part": part}
