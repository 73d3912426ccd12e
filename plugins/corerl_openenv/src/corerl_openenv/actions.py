"""From the policy's text to an action: JSON, or the text itself if an action has one field."""

import json
import re
from collections.abc import Mapping
from typing import Any

FENCE = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
CALL_TOOL = {
    "type": "object",
    "title": "CallToolAction",
    "properties": {
        "type": {"const": "call_tool"},
        "tool_name": {"type": "string"},
        "arguments": {"type": "object"},
    },
    "required": ["tool_name"],
}
"""the schema of an action that calls a tool; a server of tools announces less"""
MCP_TITLES = ("Action", "CallToolAction", "ListToolsAction")


def calls_tools(schema: Mapping[str, Any]) -> bool:
    """Whether a server's actions are calls of tools (MCP)."""
    return schema.get("title") in MCP_TITLES


def short_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema without the field ``metadata``, which every action has and the policy does not need."""
    properties = {name: value for name, value in schema.get("properties", {}).items() if name != "metadata"}
    kept = {name: value for name, value in schema.items() if name in ("required", "$defs")}
    return {"type": "object", "properties": properties, **kept}


def parse_action(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The action in the policy's text.

    >>> parse_action('{"message": "hi"}', {"properties": {"message": {"type": "string"}}})
    {'message': 'hi'}
    >>> parse_action("7", {"properties": {"guess": {"type": "integer"}}, "required": ["guess"]})
    {'guess': 7}

    Raises:
        ValueError: there is none.
    """
    fenced = FENCE.findall(text)
    written = (fenced[-1] if fenced else text).strip()
    value = _json(written)
    if isinstance(value, dict):
        return {"type": "call_tool", **value} if calls_tools(schema) else value
    required = schema.get("required", [])
    if len(required) != 1:
        raise ValueError("an action is a JSON object")
    kind = schema.get("properties", {}).get(required[0], {}).get("type")
    return {required[0]: written if kind == "string" or value is None else value}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
