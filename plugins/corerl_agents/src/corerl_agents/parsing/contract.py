"""A turn of the policy, parsed: content, reasoning and tool calls."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    """A tool call.

    Attributes:
        arguments: a JSON object, as text.
    """

    name: str
    arguments: str


@dataclass(frozen=True)
class Parsed:
    """A turn.

    Attributes:
        content: the text without reasoning and calls; malformed calls are part of it.
        malformed: number of calls that cannot be read.
        missed: number of calls in the spelling of another format, which are part of the content.
        spelling: name of that format.
    """

    content: str
    reasoning: str = ""
    calls: Sequence[Call] = field(default_factory=tuple)
    malformed: int = 0
    missed: int = 0
    spelling: str = ""


class MalformedError(ValueError):
    """A call that cannot be read."""


Schemas = Mapping[str, Mapping[str, Any]]
"""name of a tool -> JSON schemas of its parameters, by name"""

CallParser = Callable[[str, Schemas], Parsed]
"""(text without reasoning, schemas of the tools) -> content and calls"""


@dataclass(frozen=True)
class Format:
    """The spelling of turns in a family of models.

    Attributes:
        markers: texts that are all in the chat templates of the family, and only there.
        calls: reads the calls; it raises nothing.
        thinks: texts around reasoning.
        leads: text before the content, no part of it.
    """

    name: str
    markers: tuple[str, ...]
    calls: CallParser
    thinks: tuple[str, str] = ("<think>", "</think>")
    leads: str = ""


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> Schemas:
    """The parameters of each tool; none if the tool's schema is no object with properties."""
    found: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        function = tool.get("function", tool)
        parameters = function.get("parameters") if isinstance(function, Mapping) else None
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            found[function["name"]] = properties if isinstance(properties, Mapping) else {}
    return found


def read_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        MalformedError: it is no JSON; NaN and Infinity are none.
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise MalformedError(str(error)) from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def call_of(name: Any, arguments: Any) -> Call:
    """A call; arguments are an object, or its JSON text.

    Raises:
        MalformedError: there is no name, or the arguments are no object.
    """
    if not isinstance(name, str) or not name.strip():
        raise MalformedError("a call needs a name")
    if isinstance(arguments, str):
        arguments = read_json(arguments or "{}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise MalformedError("arguments must be an object")
    return Call(name.strip(), json.dumps(arguments, ensure_ascii=False))


def typed(text: str, schema: Any) -> Any:
    """The value of a parameter that is written without quotes: a text if its schema is of type string, else JSON.

    A text that is no JSON stays a text.
    """
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return text
    try:
        return read_json(text)
    except MalformedError:
        return {"True": True, "False": False, "None": None}.get(text.strip(), text)


def spans(text: str, begin: str, end: str, read: Callable[[str], Sequence[Call]]) -> Parsed:
    """Read the calls between ``begin`` and ``end``; what cannot be read, or has no end, stays content."""
    content, calls, malformed = "", list[Call](), 0
    head, found, rest = text.partition(begin)
    content += head
    while found:
        body, ended, after = rest.partition(end)
        try:
            if not ended:
                raise MalformedError("a call without an end")
            calls += read(body)
        except MalformedError:
            malformed += 1
            content += begin + body + ended
        head, found, rest = after.partition(begin)
        content += head
    return Parsed(content.strip() if calls else content, "", tuple(calls), malformed)
