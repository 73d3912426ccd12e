"""The episodes that a test gives to a client, and a tool."""

import json
import os
from typing import Any

EPISODES: dict[str, dict[str, str]] = json.loads(os.environ.get("EPISODES", "{}"))
"""name -> base_url, api_key"""
QUESTION = "Add 2 and 3, and 4 and 5."
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FUNCTION = {"name": "add", "description": "Adds two numbers.", "parameters": SCHEMA}


def address(name: str) -> dict[str, str]:
    """``base_url`` and ``api_key`` of an episode for clients of OpenAI."""
    return EPISODES[name]


def root(name: str) -> str:
    """The base URL of an episode for clients of Anthropic."""
    return EPISODES[name]["base_url"].removesuffix("/v1")


def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"{a} + {b} = {a + b}"


def added(arguments: str) -> str:
    return add(**json.loads(arguments))


def report(**results: Any) -> None:
    """Print the results for the test."""
    print("RESULTS " + json.dumps(results))
