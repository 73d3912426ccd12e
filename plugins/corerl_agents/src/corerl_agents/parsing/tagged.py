"""Calls in tags: JSON (Qwen 2.5 and 3, Hermes), XML (Qwen3-Coder, Qwen 3.5), keys and values (GLM 4)."""

import re

from corerl_agents.parsing.contract import Call, MalformedError, Parsed, Schemas, call_of, read_json, spans, typed

BEGIN, END = "<tool_call>", "</tool_call>"

_FUNCTION = re.compile(r"\s*<function=(?P<name>[^>\n]+)>(?P<body>.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=(?P<name>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>", re.DOTALL)
_PAIR = re.compile(r"<arg_key>(?P<name>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>", re.DOTALL)


def hermes(text: str, schemas: Schemas) -> Parsed:
    """``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""
    return spans(text, BEGIN, END, _json_call)


def _json_call(body: str) -> list[Call]:
    value = read_json(body)
    if not isinstance(value, dict) or "arguments" not in value:
        raise MalformedError("a call is {name, arguments}")
    return [call_of(value.get("name"), value["arguments"])]


def qwen_xml(text: str, schemas: Schemas) -> Parsed:
    """``<tool_call><function=…><parameter=…>…</parameter></function></tool_call>``."""

    def read(body: str) -> list[Call]:
        found = _FUNCTION.fullmatch(body)
        if found is None:
            raise MalformedError("a call is <function=…>…</function>")
        return [_with_values(found["name"], _PARAMETER, found["body"], schemas)]

    return spans(text, BEGIN, END, read)


def glm(text: str, schemas: Schemas) -> Parsed:
    """``<tool_call>name<arg_key>…</arg_key><arg_value>…</arg_value></tool_call>``."""

    def read(body: str) -> list[Call]:
        name, _, pairs = body.partition("<arg_key>")
        return [_with_values(name, _PAIR, "<arg_key>" + pairs if pairs else "", schemas)]

    return spans(text, BEGIN, END, read)


def _with_values(name: str, pattern: "re.Pattern[str]", text: str, schemas: Schemas) -> Call:
    name = name.strip()
    if not re.fullmatch(r"[\w.:/-]+", name) or pattern.sub("", text).strip():
        raise MalformedError("text between the parts of a call")
    properties = schemas.get(name, {})
    values = {found["name"].strip(): found["value"] for found in pattern.finditer(text)}
    return call_of(name, {key: typed(value, properties.get(key)) for key, value in values.items()})
