"""Base classes of verl's tools and interactions, for machines without verl.

A tool file that begins with ``from verl.tools.base_tool import BaseTool`` runs unchanged if verl is installed. Without
verl it begins with ``from corerl_verl.tools import BaseTool, ToolResponse, function_tool``.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from corerl_agents.agents.functions import schema_of


class ToolSchema:
    """A tool as OpenAI's chat completions have it, whose keys are attributes, too."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getattr__(self, name: str) -> Any:
        try:
            value = self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(name) from None
        return ToolSchema(value) if isinstance(value, Mapping) else value

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """The plain values."""
        return self._values


@dataclasses.dataclass
class ToolResponse:
    """The answer of a tool.

    Attributes:
        text: for the policy.
        image: images of Pillow, or references.
        video: not supported.
    """

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None


class BaseTool:
    """verl's contract of a tool with a state."""

    def __init__(self, config: dict[str, Any], tool_schema: Any = None) -> None:
        self.config = config
        self.tool_schema = tool_schema or self.get_openai_tool_schema()
        self.name: str = self.tool_schema.function.name

    def get_openai_tool_schema(self) -> Any:
        """The schema, for tools whose YAML has none."""
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Begin a call; ``kwargs["create_kwargs"]`` are the row's."""
        return instance_id or str(uuid4()), ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        """Return answer, reward of the call, and metrics."""
        raise NotImplementedError(f"{type(self).__name__}.execute")

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """Return the reward of the state; CoreRL does not ask for it."""
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """End a call."""


class BaseInteraction:
    """verl's contract of a simulated user."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.name: str = config.get("name", "interaction_agent")

    async def start_interaction(self, instance_id: str | None = None, **kwargs: Any) -> str:
        """Begin an episode; ``kwargs`` are the row's."""
        return instance_id or str(uuid4())

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Return whether the episode ends, the user's message, a score of the turn, and metrics."""
        raise NotImplementedError(f"{type(self).__name__}.generate_response")

    async def finalize_interaction(self) -> None:
        """verl does not call it."""


@dataclasses.dataclass(frozen=True)
class FunctionEntry:
    """A function of ``@function_tool``."""

    name: str
    fn: Callable[..., Any]
    tool_schema: ToolSchema
    is_async: bool


FUNCTION_TOOLS: dict[str, FunctionEntry] = {}
"""name -> function"""


def function_tool(name: Any = None, *, schema: Any = None) -> Any:
    """Register a function as a tool: ``@function_tool``, ``@function_tool("name")`` or with a schema."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        given = schema if schema is None or isinstance(schema, Mapping) else schema.model_dump(exclude_none=True)
        values = schema_of(function) if given is None else dict(given)
        own = name if isinstance(name, str) else function.__name__
        values["function"] = {**values["function"], "name": own}
        entry = FunctionEntry(own, function, ToolSchema(values), inspect.iscoroutinefunction(function))
        FUNCTION_TOOLS[own] = entry
        return function

    return decorate(name) if callable(name) else decorate
