"""Messages and tools of rows: nulls that Arrow adds, calls without a content, schemas as JSON."""

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
    [old] = check_messages([{"role": "assistant", "function_call": {"name": "f"}, **content}], PLACE, "messages")
    assert old["content"] == ""


@pytest.mark.parametrize("empty", [None, []])
def test_a_message_without_calls_has_no_key_for_them_and_needs_a_content(empty: Any) -> None:
    assert check_messages([{**USER, "tool_calls": empty}], PLACE, "messages") == [USER]
    with pytest.raises(DataError, match="message 0: has no content"):
        check_messages([{"role": "assistant", "content": None, "tool_calls": empty}], PLACE, "messages")


def test_null_fields_of_parts_are_left_out() -> None:
    parts = [
        {"type": "text", "text": "a", "image_url": None},
        {"type": "image", "image": {"bytes": b"x", "path": None}},
    ]
    [message] = check_messages([{"role": "user", "content": parts}], PLACE, "prompt")
    assert message["content"] == [{"type": "text", "text": "a"}, {"type": "image", "image": {"bytes": b"x"}}]


@pytest.mark.parametrize(
    "given",
    [[SCHEMA], json.dumps([SCHEMA]), [json.dumps(SCHEMA)], [SCHEMA["function"]], json.dumps([SCHEMA["function"]])],
)
def test_tools_are_schemas_or_their_json(given: Any) -> None:
    assert check_tools(given, PLACE) == [SCHEMA]


@pytest.mark.parametrize("empty", [None, [], "", " "])
def test_no_tools_are_none(empty: Any) -> None:
    assert check_tools(empty, PLACE) == []


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
        check_tools(wrong, PLACE)
