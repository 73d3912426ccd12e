"""Environment ``calculator``: arithmetic that the policy asks for, between the turns of a word problem."""

import json
import re

from corerl.contracts.environments import Start, Task, Turn
from corerl_envs.arithmetic import evaluate, shown
from corerl_envs.options import CalculatorOptions

_CALL = re.compile(
    r"<calc>(?P<tag>.*?)</calc>|```calc\s*\n(?P<block>.*?)```|<tool_call>(?P<json>.*?)</tool_call>", flags=re.DOTALL
)


class Calculator:
    """A turn with calls is answered with their results; one without ends the episode.

    It gives no reward: the scorer of the data source does. See :class:`corerl.contracts.environments.Environment`.
    """

    def __init__(self, *, options: CalculatorOptions) -> None:
        self._options = options

    def reset(self, task: Task, seed: int) -> Start:
        """The row's messages, the instruction behind the last one of the user's."""
        messages = [dict(message) for message in task.messages]
        if not self._options.instruction:
            return Start()
        for message in reversed(messages):
            if message["role"] == "user":
                message["content"] += self._options.instruction
                break
        return Start(messages=messages)

    def step(self, state: None, response: str) -> Turn:
        """One message with a line for each call, at most ``max_calls``."""
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
        """Nothing to give back."""


def _result(call: "re.Match[str]") -> str:
    try:
        return shown(evaluate(_expression(call)))
    except ValueError as error:
        return f"error: {error}"


def _expression(call: "re.Match[str]") -> str:
    """What is to be worked out.

    Raises:
        ValueError: a tool call that is not one of the calculator.
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
