"""Messages and tools of rows: nulls that Arrow adds, calls without a content, parts, schemas as JSON."""

import json
import re
from typing import Any

import pytest

from corerl.data import without_nulls
from corerl.data.messages import check_messages, check_tools
from corerl.data.report import Location
from corerl.errors import DataError

PLACE = Location("train.parquet", 3)
USER = {"role": "user", "content": "?"}
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
SCHEMA = {"type": "function", "function": FUNCTION}


def calls(*arguments: Any, **more: Any) -> dict[str, Any]:
    made = [{"type": "function", "function": {"name": "f", "arguments": each}} for each in arguments]
    return {"role": "assistant", "tool_calls": made, **more}


def test_null_fields_are_left_out_at_every_depth_and_null_items_stay() -> None:
    given = {"a": None, "b": {"c": None, "d": [None, {"e": None, "f": 0}]}, "g": False, "h": ""}
    assert without_nulls(given) == {"b": {"d": [None, {"f": 0}]}, "g": False, "h": ""}


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_a_missing_content_beside_calls_is_empty(content: dict[str, Any]) -> None:
    [_, message] = check_messages([USER, calls({"a": 1}, **content)], PLACE, "messages")
    assert message["content"] == "" and message["tool_calls"][0]["function"]["arguments"] == {"a": 1}


@pytest.mark.parametrize("empty", [None, []])
def test_a_message_without_calls_has_no_key_for_them_and_needs_a_content(empty: Any) -> None:
    assert check_messages([{**USER, "tool_calls": empty}], PLACE, "messages") == [USER]
    with pytest.raises(DataError, match="message 0: has no content"):
        check_messages([{"role": "assistant", "content": None, "tool_calls": empty}], PLACE, "messages")


def test_a_function_call_is_a_tool_call() -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    [message] = check_messages([old], PLACE, "messages")
    assert message == {**calls("{}"), "content": ""}


@pytest.mark.parametrize("wrong", ["[]", [{"id": "1"}], [None], {"function": {"name": "f"}}])
def test_calls_of_another_form_are_an_error(wrong: Any) -> None:
    with pytest.raises(DataError, match=r"row 3, column 'messages', message 0: tool_calls must be a list of"):
        check_messages([{**USER, "tool_calls": wrong}], PLACE, "messages")


def content_of(*parts: Any) -> Any:
    return check_messages([{"role": "user", "content": list(parts)}], PLACE, "prompt")[0]["content"]


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def test_parts_of_text_alone_are_one_text() -> None:
    assert content_of(text("a"), {"type": "text", "text": "b", "image_url": None}) == "ab"


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "image"}, {"type": "image"}),
        ({"type": "image", "image": None, "text": None}, {"type": "image"}),
        ({"type": "image", "image": b"x"}, {"type": "image", "image": b"x"}),
        ({"type": "image", "image": {"bytes": b"x", "path": None}}, {"type": "image", "image": b"x"}),
        ({"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}, {"type": "image", "image": "data:x"}),
        ({"type": "input_image", "image_url": "data:x"}, {"type": "image", "image": "data:x"}),
        ({"type": "video", "video": [b"x"], "fps": 2.0}, {"type": "video", "video": [b"x"], "fps": 2.0}),
    ],
)
def test_images_and_videos_have_one_form(part: dict[str, Any], expected: dict[str, Any]) -> None:
    assert content_of(text("a"), part) == [text("a"), expected]


@pytest.mark.parametrize("kind", ["audio", "input_audio", "audio_url", "file", "document", "tool_result", None])
def test_a_part_that_nothing_reads_is_an_error(kind: Any) -> None:
    with pytest.raises(DataError, match=r"message 0: has a part dict .*; parts are text, image and video"):
        content_of(text("a"), {"type": kind, "data": "x"})


@pytest.mark.parametrize(
    "given",
    [[SCHEMA], json.dumps([SCHEMA]), [json.dumps(SCHEMA)], [SCHEMA["function"]], json.dumps([SCHEMA["function"]])],
)
def test_tools_are_schemas_or_their_json(given: Any) -> None:
    assert check_tools(given, PLACE, "tools") == [SCHEMA]


@pytest.mark.parametrize("empty", [None, [], "", " "])
def test_no_tools_are_none(empty: Any) -> None:
    assert check_tools(empty, PLACE, "tools") == []


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ("[{", "is no JSON text"),
        (["search"], "is no JSON text"),
        ({"a": 1}, "must be a list of tools, or its JSON text, not dict {'a': 1}"),
        ([{"type": "function"}], "must have tools {type, function: {name, …}}"),
    ],
)
def test_other_tools_are_an_error(wrong: Any, problem: str) -> None:
    with pytest.raises(DataError, match=rf"^train.parquet, row 3, column 'tools': {re.escape(problem)}"):
        check_tools(wrong, PLACE, "tools")
