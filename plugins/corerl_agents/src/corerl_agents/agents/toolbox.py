"""The tools of a run: what the policy may call, and the answers to its calls."""

import asyncio
import functools
import inspect
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from corerl.errors import ConfigError, described
from corerl.foreign import contained
from corerl.registry import load_object
from corerl_agents.agents.functions import complaint, schema_of, with_enums
from corerl_agents.calls import Calls


@dataclass(frozen=True)
class Result:
    """The answer to a call.

    Attributes:
        text: for the policy.
        is_error: the call failed; the text is the reason.
        seconds: from the call to the answer.
    """

    text: str
    is_error: bool = False
    seconds: float = 0.0


class Tool(Protocol):
    """Something that the policy can call."""

    @property
    def schema(self) -> Mapping[str, Any]:
        """``{"type": "function", "function": {"name", "description", "parameters"}}``."""
        ...

    async def __call__(self, arguments: Mapping[str, Any]) -> Result:
        """Raises nothing but CancelledError."""
        ...


class FunctionTool:
    """A Python function.

    Args:
        calls: threads for functions that are not ``async``.
        timeout: seconds for one call.
    """

    def __init__(self, reference: str, calls: Calls, timeout: float) -> None:
        try:
            self._function = load_object(reference)
        except (ImportError, AttributeError, FileNotFoundError, SyntaxError) as error:
            raise ConfigError("functions", f"cannot load {reference}: {error}") from error
        if not callable(self._function):
            raise ConfigError("functions", f"{reference} is no function")
        self.schema = schema_of(self._function)
        self._calls, self._timeout, self._is_async = calls, timeout, inspect.iscoroutinefunction(self._function)

    async def __call__(self, arguments: Mapping[str, Any]) -> Result:
        """See :class:`Tool`."""
        if (reason := complaint(self.schema["function"]["parameters"], arguments)) is not None:
            return Result(f"error: {reason}", is_error=True)
        function = functools.partial(self._function, **with_enums(self._function, arguments))
        if self._is_async:
            return await timed(function, self._timeout)
        answer = await self._calls.call(function)
        if answer.error is not None:
            return Result(f"error: the tool {answer.error}", True, answer.seconds)
        return Result(as_text(answer.value), False, answer.seconds)


async def timed(function: Callable[[], Awaitable[Any]], timeout: float) -> Result:
    """The answer of an ``async`` call, which ends at its deadline."""
    start = time.perf_counter()
    try:
        async with asyncio.timeout(timeout) as deadline:
            value = await contained(function, "it")
    except Exception as error:
        late = isinstance(error, TimeoutError) and deadline.expired()
        reason = f"took longer than {timeout:g} s" if late else f"raised {described(error)}"
        return Result(f"error: the tool {reason}", True, time.perf_counter() - start)
    if isinstance(value, Result):
        return Result(value.text, value.is_error, time.perf_counter() - start)
    return Result(as_text(value), False, time.perf_counter() - start)


def as_text(value: Any) -> str:
    """A value for the policy: a text itself, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    """The tools by name.

    Raises:
        ConfigError: two have one name.
    """
    found: dict[str, Tool] = {}
    for tool in tools:
        name = tool.schema["function"]["name"]
        if name in found:
            raise ConfigError("rollout.agent", f"two tools have the name '{name}': rename one of them")
        found[name] = tool
    return found


async def call(tools: Mapping[str, Tool], name: str, arguments: str) -> Result:
    """The answer to a call of the policy.

    Args:
        arguments: as JSON.
    """
    if name not in tools:
        return Result(f"error: there is no tool '{name}'; tools are {', '.join(tools)}", is_error=True)
    try:
        values = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        return Result("error: the arguments are no JSON object", is_error=True)
    return await tools[name](values)
