"""Reads verl's tools and interactions: a YAML file that names classes, and a Python file of ``@function_tool``."""

import asyncio
import base64
import contextlib
import importlib
import inspect
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from corerl.errors import ConfigError
from corerl.registry import load_object
from corerl.registry.modules import load_file
from corerl_verl import tools

KEY = "rollout.agent"
_LOADING = (ImportError, AttributeError, FileNotFoundError, SyntaxError, ValueError)
_SIDES: Mapping[str, Callable[[str, int], str]] = {
    "left": lambda text, most: f"…{text[len(text) - most :]}",
    "right": lambda text, most: f"{text[:most]}…",
    "middle": lambda text, most: f"{text[: most // 2]}…{text[len(text) - most // 2 :]}",
}
"""side of a long answer that is left out -> the rest"""


def shortened(text: str, most: int, side: str) -> str:
    """An answer of at most ``most`` characters of its own.

    >>> shortened("0123456789", 4, "middle"), shortened("0123456789", 4, "left"), shortened("0123456789", 4, "right")
    ('01…89', '…6789', '0123…')
    """
    return text if len(text) <= most else _SIDES[side](text, most)


@dataclass(frozen=True)
class Outcome:
    """The answer to a call.

    Attributes:
        content: of the message, a text or parts of text and images.
        reward: of the call.
        is_error: the call failed; the content is the reason.
    """

    content: Any
    reward: float = 0.0
    is_error: bool = False


class Toolbox:
    """The tools of a run by name.

    Raises:
        ConfigError: a file, a class or a function cannot be loaded, or two tools have one name.
    """

    def __init__(self, native: str | None, functions: str | None) -> None:
        found = [*_native(native), *_functions(functions)]
        self.tools: dict[str, Any] = {tool.name: tool for tool in found}
        if len(self.tools) < len(found):
            names = [tool.name for tool in found]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ConfigError(KEY, f"two tools have the name '{twice[0]}': rename one of them")

    def schemas(self, selection: Any) -> list[Mapping[str, Any]]:
        """The schemas of the selected tools; of all without a selection."""
        return [_plain(self.tools[name].tool_schema) for name in self._selected(selection)]

    def _selected(self, selection: Any) -> list[str]:
        names = [name for name in selection or () if name in self.tools]
        return names if selection and self.tools else list(self.tools)

    async def call(self, name: str, arguments: str, row: Mapping[str, Any], session: Any, limits: "Limits") -> Outcome:
        """The answer to a call of the policy; a failure of the tool is its answer.

        Args:
            arguments: as JSON.
            row: the row's ``extra_info``.
            session: what ``execute`` gets as ``agent_data``.
        """
        available = self._selected(row.get("tool_selection"))
        if name not in available:
            return _failure(f"there is no tool '{name}'; tools are {', '.join(available)}")
        try:
            values = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            return _failure("the arguments are no JSON object")
        kwargs = (row.get("tools_kwargs") or {}).get(name) or {}
        try:
            async with asyncio.timeout(limits.timeout) as deadline:
                answer = await _answer(self.tools[name], values, kwargs.get("create_kwargs") or {}, session)
            response, reward, *_ = answer
            return Outcome(_content(response, limits), float(reward or 0.0))
        except Exception as error:
            late = isinstance(error, TimeoutError) and deadline.expired()
            raised = f"raised {type(error).__name__}: {' '.join(str(error).split())}"
            return _failure(f"the tool {f'took longer than {limits.timeout:g} s' if late else raised}")


@dataclass(frozen=True)
class Limits:
    """Of an answer: seconds, characters, and the side of a long one that is left out."""

    timeout: float
    characters: int
    side: str


def _failure(reason: str) -> Outcome:
    return Outcome(f"error: {reason}", is_error=True)


async def _answer(tool: Any, values: dict[str, Any], create: Mapping[str, Any], session: Any) -> Any:
    """(response, reward, metrics) of one call."""
    if hasattr(tool, "fn"):
        value = await tool.fn(**values) if tool.is_async else await asyncio.to_thread(tool.fn, **values)
        return value if isinstance(value, tuple) else (value, 0.0, {})
    started = await tool.create(**_taken(tool.create, {**create, "create_kwargs": dict(create)}))
    instance = started[0] if isinstance(started, tuple) else started  # of verl 0.5: the instance alone
    try:
        return await tool.execute(instance, values, **_taken(tool.execute, {"agent_data": session}))
    finally:
        await tool.release(instance)


def _taken(method: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a method names; with ``**kwargs`` also ``create_kwargs`` and ``agent_data``, as in verl."""
    parameters = inspect.signature(method).parameters
    free = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return {
        name: value
        for name, value in given.items()
        if name in parameters or (free and name in ("create_kwargs", "agent_data"))
    }


def _content(response: Any, limits: Limits) -> Any:
    """A message's content of a text, a mapping, or a response with ``text`` and ``image``."""
    if isinstance(response, str) or not hasattr(response, "text"):
        text = response if isinstance(response, str) else json.dumps(response, ensure_ascii=False, default=str)
        return shortened(text, limits.characters, limits.side)
    if getattr(response, "video", None):
        raise NotImplementedError("its answer has a video: CoreRL's agents read text and images")
    text = shortened(response.text or "", limits.characters, limits.side)
    images = [image for image in getattr(response, "image", None) or () if image is not None]
    parts = [{"type": "image", "image": _reference(image)} for image in images]
    return [*parts, {"type": "text", "text": text}] if parts else text


def _reference(image: Any) -> str:
    """An address, or the data URL of an image of Pillow."""
    if isinstance(image, str):
        return image
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _plain(schema: Any) -> Mapping[str, Any]:
    plain: Mapping[str, Any] = schema.model_dump(exclude_unset=True, exclude_none=True)
    return plain


def entries(path: str, name: str) -> list[dict[str, Any]]:
    """The list ``name`` of a YAML file.

    Raises:
        ConfigError: no such file or list.
    """
    try:
        values: Any = OmegaConf.to_container(OmegaConf.load(Path(path).expanduser()), resolve=True)
    except (OSError, UnicodeDecodeError, ValueError, OmegaConfBaseException) as error:
        raise ConfigError(KEY, f"cannot read {path}: {' '.join(str(error).split())}") from None
    found = values.get(name) if isinstance(values, dict) else None
    if not isinstance(found, list) or not all(isinstance(each, dict) and "class_name" in each for each in found):
        raise ConfigError(KEY, f"{path} must have a list '{name}' of mappings with class_name")
    return found


def class_of(name: str, path: str) -> Any:
    """The class of a dotted name.

    Raises:
        ConfigError: it cannot be imported.
    """
    module, _, attribute = name.rpartition(".")
    try:
        return load_object(f"{module}:{attribute}")
    except _LOADING as error:
        reason = ": install verl, or take the base class of corerl_verl.tools" if _needs_verl(error) else ""
        raise ConfigError(KEY, f"{path}: cannot load {name}: {error}{reason}") from error


def _needs_verl(error: BaseException) -> bool:
    return isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] == "verl"


def _native(path: str | None) -> list[Any]:
    found = []
    for each in entries(path, "tools") if path else ():
        config = each.get("config") or {}
        if config.get("type", "native") != "native":
            remedy = "name the server in rollout.agent={name: tools, servers: […]}"
            raise ConfigError(KEY, f"{path}: {each['class_name']} is of type {config['type']}: {remedy}")
        schema = each.get("tool_schema")
        kind = class_of(each["class_name"], str(path))
        found.append(kind(config=config, tool_schema=None if schema is None else _schema_class()(schema)))
    return found


def _schema_class() -> Callable[[Any], Any]:
    """verl's class of schemas, or the stand-in."""
    try:
        schemas = importlib.import_module("verl.tools.schemas")
    except ImportError:
        return tools.ToolSchema
    validate: Callable[[Any], Any] = schemas.OpenAIFunctionToolSchema.model_validate
    return validate


def _functions(path: str | None) -> list[Any]:
    """The functions that a file registers, with verl's decorator or the stand-in."""
    if path is None:
        return []
    try:
        module = load_file(path)
    except _LOADING as error:
        reason = ": install verl, or take function_tool of corerl_verl.tools" if _needs_verl(error) else ""
        raise ConfigError(KEY, f"cannot load {path}: {error}{reason}") from error
    registries: list[Mapping[str, Any]] = [tools.FUNCTION_TOOLS]
    with contextlib.suppress(ImportError):  # the file took the stand-in
        registries.append(importlib.import_module("verl.tools.function_tool").FUNCTION_TOOL_REGISTRY)
    found = [each for registry in registries for each in registry.values() if each.fn.__module__ == module.__name__]
    if not found:
        raise ConfigError(KEY, f"{path} has no function with @function_tool")
    return found


def interactions(path: str | None) -> dict[str, Any]:
    """Name -> interaction, of a YAML file.

    Raises:
        ConfigError: the file or a class cannot be loaded.
    """
    found: dict[str, Any] = {}
    for each in entries(path, "interaction") if path else ():
        kind = class_of(each["class_name"], str(path))
        simple = kind.__name__.removesuffix("Interaction") or kind.__name__
        name = each.get("name") or simple.lower()
        found[name] = kind(config={**(each.get("config") or {}), "name": name})
    return found
