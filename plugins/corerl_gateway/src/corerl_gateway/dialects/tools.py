"""The tools of OpenAI's dialects: functions, and custom tools, whose argument is a text."""

import json
from collections.abc import Mapping
from typing import Any

from corerl_gateway.dialects.content import call, tool
from corerl_gateway.errors import invalid, unsupported
from corerl_gateway.fields import Fields
from corerl_gateway.notices import name_once
from corerl_gateway.sessions import Session

INPUT = "input"
"""the argument of the function that stands for a custom tool"""
SCHEMA = {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}


def client_tools(fields: Fields, *, flat: bool) -> tuple[list[dict[str, Any]], frozenset[str]]:
    """The tools of a request that ``tool_choice`` leaves, and the names of the custom ones.

    Args:
        flat: a tool has the fields of its function, and beside it may stand tools of the provider, which the policy
            lacks. Else it has them in an object of its own.
    """
    tools, custom = [], set[str]()
    for each in fields.items("tools"):
        kind = each.text("type", "function")
        if kind not in ("function", "custom"):
            if not flat:
                raise unsupported(each.path("type"), "the client's own tools are the only ones")
            name_once([f"tools[] of type {each.values['type']}"])
            continue
        own = each if flat else each.inner(kind)
        if own is None:
            raise invalid(each.path(kind), "an object")
        if kind == "custom":
            custom.add(own.text("name"))
        tools.append(_custom(own) if kind == "custom" else _function(own))
    return _chosen(fields, tools), frozenset(custom)


def _function(own: Fields) -> dict[str, Any]:
    parameters = own.inner("parameters")
    return tool(own.text("name"), own.text("description", ""), parameters.values if parameters else None)


def _custom(own: Fields) -> dict[str, Any]:
    """A function with one text; a grammar of it is shown, and not enforced."""
    description, form = own.text("description", ""), own.inner("format")
    if form is not None and form.text("type") == "grammar":
        grammar = form.inner("grammar") or form
        syntax, definition = grammar.text("syntax", "lark"), grammar.text("definition")
        description += f"\n\nThe input follows this grammar ({syntax}):\n{definition}"
    return tool(own.text("name"), description, SCHEMA)


def _chosen(fields: Fields, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    choice = fields.get("tool_choice")
    if choice in (None, "auto"):
        return tools
    if choice == "none":
        return []
    raise unsupported("tool_choice", "the policy chooses freely; send 'auto' or 'none'")


def remember_input(session: Session, number: str, arguments: str) -> str:
    """The input of a call of a custom tool; other arguments than an input are the input as they are."""
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        values = None
    given = values.get(INPUT) if isinstance(values, dict) else None
    text = given if isinstance(given, str) else arguments
    session.arguments[number] = text, arguments
    return text


def custom_call(session: Session, number: str, own: Fields) -> dict[str, Any]:
    """A call of a custom tool as a call of its function, as the policy wrote it."""
    name, given = own.text("name"), own.text(INPUT, "")
    return call(number, name, arguments_of(session, number, given, {INPUT: given}))


def arguments_of(session: Session, number: str, given: Any, value: Mapping[str, Any]) -> str:
    """The text of a call's arguments: the policy's own, if the client sends back what it got."""
    known, text = session.arguments.get(number, (None, ""))
    return text if known == given else json.dumps(value, ensure_ascii=False)
