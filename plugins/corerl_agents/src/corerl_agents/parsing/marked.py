"""Calls behind special tokens: Llama 3, DeepSeek V3 and R1, Mistral."""

import ast
import json
import re

from corerl_agents.parsing.contract import Call, MalformedError, Parsed, Schemas, call_of, read_json, spans

PYTHON = "<|python_tag|>"

_LLAMA_FUNCTION = re.compile(r"\s*<function=(?P<name>[^>\s]+)>(?P<arguments>.*)</function>\s*", re.DOTALL)
_DEEPSEEK_CALL = re.compile(
    r"<｜tool▁call▁begin｜>(?P<head>.*?)<｜tool▁sep｜>(?P<rest>.*?)<｜tool▁call▁end｜>", re.DOTALL
)
_FENCED = re.compile(r"(?P<name>[^\n]+)\n```json\n(?P<arguments>.*)\n```\s*", re.DOTALL)
_ARGS = "[ARGS]"


def llama(text: str, schemas: Schemas) -> Parsed:
    """``{"name": …, "parameters": {…}}``, several after ``;``, with or without ``<|python_tag|>``; ``name.call(…)``."""
    head, tagged, rest = text.partition(PYTHON)
    body = rest if tagged else text
    try:
        return Parsed(head.strip() if tagged else "", "", tuple(_llama_calls(body)))
    except MalformedError:
        is_call = bool(tagged) or _names_a_tool(body, schemas)
        return Parsed(text, malformed=int(is_call))


def _names_a_tool(text: str, schemas: Schemas) -> bool:
    """Whether a text that is no call begins as one: JSON with a name, or a function's tag."""
    begun = text.lstrip()
    return begun.startswith("<function=") or (begun.startswith("{") and any(f'"{name}"' in begun for name in schemas))


def _llama_calls(body: str) -> list[Call]:
    if found := _LLAMA_FUNCTION.fullmatch(body):
        return [call_of(found["name"], found["arguments"])]
    if not body.lstrip().startswith("{"):
        return [_builtin(body.strip())]
    return [_named(value) for value in _values(body.strip())]


def _values(text: str) -> list[object]:
    """JSON values with ``;`` between them."""
    values, decoder = [], json.JSONDecoder()
    while text:
        try:
            _, end = decoder.raw_decode(text)
        except (ValueError, RecursionError) as error:
            raise MalformedError(str(error)) from error
        values.append(read_json(text[:end]))
        text = text[end:].lstrip()
        if text and not text.startswith(";"):
            raise MalformedError("text behind a call")
        text = text[1:].lstrip()
    return values


def _named(value: object) -> Call:
    if not isinstance(value, dict) or not ({"parameters", "arguments"} & value.keys()):
        raise MalformedError("a call is {name, parameters}")
    return call_of(value.get("name"), value.get("parameters", value.get("arguments")))


def _builtin(text: str) -> Call:
    """``brave_search.call(query="…")``."""
    try:
        tree = ast.parse(text, mode="eval").body
        match tree:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="call"), args=[], keywords=given):
                return call_of(name, {str(each.arg): ast.literal_eval(each.value) for each in given})
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise MalformedError(str(error)) from error
    raise MalformedError("no call")


def deepseek(text: str, schemas: Schemas) -> Parsed:
    """``<｜tool▁calls▁begin｜>…<｜tool▁calls▁end｜>`` with the fenced JSON of V3 and R1, or the plain JSON of V3.1."""
    return spans(text, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", _deepseek_calls)


def _deepseek_calls(body: str) -> list[Call]:
    found = list(_DEEPSEEK_CALL.finditer(body))
    if not found or _DEEPSEEK_CALL.sub("", body).strip():
        raise MalformedError("text between calls")
    return [_deepseek_call(each["head"], each["rest"]) for each in found]


def _deepseek_call(head: str, rest: str) -> Call:
    fenced = _FENCED.fullmatch(rest)
    return call_of(head, rest) if fenced is None else call_of(fenced["name"], fenced["arguments"])


def mistral(text: str, schemas: Schemas) -> Parsed:
    """``[TOOL_CALLS][{"name": …, "arguments": {…}}]``, or ``[TOOL_CALLS]name[ARGS]{…}`` for each call."""
    head, *parts = text.split("[TOOL_CALLS]")
    try:
        calls = [call for part in parts for call in _mistral_calls(part)]
    except MalformedError:
        return Parsed(text, malformed=len(parts))
    return Parsed(head.strip() if parts else text, "", tuple(calls))


def _mistral_calls(text: str) -> list[Call]:
    name, is_named, arguments = text.partition(_ARGS)
    if is_named:
        return [call_of(name, arguments.strip())]
    values = read_json(text)
    if not isinstance(values, list) or not values:
        raise MalformedError("calls are a list")
    return [_named(value) for value in values]
