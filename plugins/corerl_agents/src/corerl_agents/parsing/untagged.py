"""Calls as JSON without tags, bare or in a fence: Qwen2.5-Coder, and models that were never trained for tools."""

import json
import re

from corerl_agents.parsing.contract import Call, Parsed, Schemas, call_of, read_json

_BEGIN = re.compile(r'\{\s*"(?:name|arguments|parameters|function|type|id)"\s*:')
_NAMED = re.compile(r'"name"\s*:\s*"(?P<name>[^"]*)"')
_BEFORE = re.compile(r"(?:```[\w-]*\s*|<(?:tool_call|tools)>\s*)*\[?\s*\Z")
_AFTER = re.compile(r"\s*[\],;]*\s*(?:```|</(?:tool_call|tools)>)?\s*")
HEAD = 200
"""characters of an unreadable object in which its name is looked for"""


def untagged(text: str, schemas: Schemas) -> Parsed:
    """``{"name": …, "arguments": {…}}``, several of them or a list, in a fence, in tags or bare, of known tools alone.

    An object of this form that names another tool, or that cannot be read, is content, and malformed.
    """
    calls, pieces, malformed, end, place = list[Call](), list[str](), 0, 0, 0
    decoder = json.JSONDecoder()
    while (begin := _BEGIN.search(text, place)) is not None:
        start = place = begin.start()
        try:
            _, place = decoder.raw_decode(text, start)
            call = _call(read_json(text[start:place]))
        except (ValueError, RecursionError):  # MalformedError among them
            place = max(place, start + 1)
            malformed += _names_a_tool(text[start : start + HEAD], schemas)
            continue
        if call is None:
            continue
        if call.name not in schemas:
            malformed += 1
            continue
        calls.append(call)
        pieces.append(_BEFORE.sub("", text[end:start]))
        end = place = _AFTER.match(text, place).end()  # type: ignore[union-attr]  # it matches the empty text
    content = "".join([*pieces, text[end:]])
    return Parsed(content.strip() if calls else text, "", tuple(calls), malformed)


def _call(value: object) -> Call | None:
    """The call of an object; None if the object has no such form.

    Raises:
        MalformedError: a name or arguments of another type.
    """
    if isinstance(value, dict) and isinstance(value.get("function"), dict):  # as in a message
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    given = [value[key] for key in ("arguments", "parameters") if key in value]
    if len(given) != 1:
        return None
    return call_of(value["name"], given[0])


def _names_a_tool(head: str, schemas: Schemas) -> bool:
    found = _NAMED.search(head)
    return found is not None and found["name"] in schemas
