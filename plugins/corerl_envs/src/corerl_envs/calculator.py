"""Environment ``calculator``: evaluates arithmetic that the policy requests, between the turns of a word problem."""

import json
import re

from corerl_envs import Start, Task, Turn
from corerl_envs.arithmetic import evaluate, shown
from corerl_envs.options import CalculatorOptions

_CALL = re.compile(
    r"<calc>(?P<tag>.*?)</calc>|```calc\s*\n(?P<block>.*?)```|<tool_call>(?P<json>.*?)</tool_call>", flags=re.DOTALL
)


class Calculator:
    """A turn with calls is answered with their results; a turn without a call ends the episode.

    The environment gives no reward; the scorer of the data source gives it.
    See :class:`corerl_envs.Environment`.
    """

    def __init__(self, *, options: CalculatorOptions) -> None:
        self._options = options

    def reset(self, task: Task, seed: int) -> Start:
        """The row's messages, with the instruction after the last user message."""
        messages = [dict(message) for message in task.messages]
        if not self._options.instruction:
            return Start()
        for message in reversed(messages):
            if message["role"] == "user":
                message["content"] += self._options.instruction
                break
        return Start(messages=messages)

    def step(self, state: None, response: str) -> Turn:
        """One message with one line for each call, at most ``max_calls``."""
        calls = list(_CALL.finditer(response))
        if not calls:
            return Turn(done=True)
        results = [_result(call) for call in calls[: self._options.max_calls]]
        return Turn(
            [{"role": self._options.role, "content": "\n".join(results)}],
            tool_calls=len(results),
            tool_errors=sum(result.startswith("error: ") for result in results),
        )

    def close(self) -> None:
        """Does nothing; the environment holds no resources."""


def _result(call: "re.Match[str]") -> str:
    try:
        return shown(evaluate(_expression(call)))
    except ValueError as error:
        return f"error: {error}"


def _expression(call: "re.Match[str]") -> str:
    """The expression of a call.

    Raises:
        ValueError: the call is not a call of the calculator.
    """
    if call["json"] is None:
        return call["tag"] if call["tag"] is not None else call["block"]
    try:
        expression = json.loads(call["json"])["arguments"]["expression"]
    except (ValueError, KeyError, TypeError, RecursionError):
        expression = None
    if not isinstance(expression, str):
        raise ValueError('write {"name": "calculator", "arguments": {"expression": "1 + 2"}}')
    return expression
