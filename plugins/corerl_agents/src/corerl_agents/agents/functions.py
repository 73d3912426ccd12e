"""Tools from Python functions: the schema comes from the signature, the description from the docstring."""

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from corerl.errors import ConfigError

_SIMPLE: dict[Any, dict[str, Any]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    list: {"type": "array"},
    dict: {"type": "object"},
    Any: {},
}
_ARGUMENT = re.compile(r"^\s+\*{0,2}(?P<name>\w+)(?:\s*\([^)]*\))?:\s*(?P<text>.*)$")


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The tool of a function, as OpenAI's chat completions have it.

    Each parameter needs a type hint: int, float, str, bool, None, list, dict, Literal, Enum, and unions of these.
    The first paragraph of the docstring describes the tool, its section ``Args`` the parameters.

    Raises:
        ConfigError: a parameter has no hint, another one, or no name in a call.
    """
    name = function.__name__
    hints = typing.get_type_hints(function)
    about, described = _docstring(inspect.getdoc(function) or "")
    properties, required = {}, []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError("functions", f"{name}: the parameter {parameter} has no name in a call")
        if parameter.name not in hints:
            raise ConfigError("functions", f"{name}: the parameter '{parameter.name}' needs a type hint")
        schema = _schema(hints[parameter.name], f"{name}: the parameter '{parameter.name}'")
        if text := described.get(parameter.name):
            schema = {**schema, "description": text}
        properties[parameter.name] = schema
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def _schema(hint: Any, place: str) -> dict[str, Any]:
    if hint in _SIMPLE:
        return dict(_SIMPLE[hint])
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(each, place) for each in arguments]}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0], place)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1], place)}
    raise ConfigError("functions", f"{place} has the type {hint}: a tool takes values of JSON")


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """(first paragraph, description of each parameter)."""
    about = " ".join(text.partition("\n\n")[0].split())
    _, found, section = text.partition("Args:\n")
    described: dict[str, str] = {}
    name = ""
    for line in section.splitlines() if found else ():
        if line.strip() and not line.startswith(" "):
            break
        if match := _ARGUMENT.match(line):
            name = match["name"]
            described[name] = match["text"].strip()
        elif name:
            described[name] = f"{described[name]} {line.strip()}".strip()
    return about, described


def complaint(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str | None:
    """The first difference between the arguments of a call and the tool's parameters, for the policy; None: none."""
    properties = schema["properties"]
    for name in schema["required"]:
        if name not in arguments:
            return f"the argument '{name}' is missing"
    for name, value in arguments.items():
        if name not in properties:
            return f"there is no argument '{name}'; arguments are {', '.join(properties) or 'none'}"
        if not _fits(value, properties[name]):
            return f"the argument '{name}' must be {_words(properties[name])}, not {value!r:.40}"
    return None


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    if "enum" in schema:
        return value in schema["enum"]
    if "anyOf" in schema:
        return any(_fits(value, each) for each in schema["anyOf"])
    match schema.get("type"):
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "array":
            return isinstance(value, list) and all(_fits(each, schema.get("items", {})) for each in value)
        case "object":
            inner = schema.get("additionalProperties", {})
            return isinstance(value, dict) and all(_fits(each, inner) for each in value.values())
        case "string" | "boolean" | "null" as simple:
            return isinstance(value, {"string": str, "boolean": bool, "null": type(None)}[simple])
    return True


def _words(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(map(repr, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(map(_words, schema["anyOf"]))
    return f"of type {schema.get('type', 'any')}"


def with_enums(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call, values of enumerations as their members."""
    hints = typing.get_type_hints(function)
    return {
        name: hints[name](value) if isinstance(hints[name], type) and issubclass(hints[name], Enum) else value
        for name, value in arguments.items()
    }
