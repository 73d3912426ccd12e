"""Checks of environments: the contract of :mod:`corerl.registry.environments`."""

import asyncio
import copy
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from corerl.registry.base import Selected
from corerl.registry.environments import Environment, EnvironmentFactory, Start, Task, Turn
from corerl.testing.deadline import within
from corerl.testing.results import CheckFailed, Run

SECONDS = 30.0
"""for one call"""

RESPONSES = ("", "yes", "I think\nthat 12 * (3 + 4) = 84", "<answer>42", "ü漢🙂\x00", "left " * 2000)

TASKS = (
    Task([{"role": "user", "content": "What is 6 * 7?"}], "42", "acme/questions"),
    Task(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}], 3, "acme/games", {"seed": 5}
    ),
)

Record = list[tuple[Any, ...]]


def checks(selected: Selected[EnvironmentFactory]) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    for name, check in _CHECKS.items():
        yield name, functools.partial(_with, check, selected)


def _with(check: Callable[[Environment], None], selected: Selected[EnvironmentFactory]) -> None:
    environment = selected.load()()
    try:
        check(environment)
    finally:
        environment.close()


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a plain method or a coroutine gives, within 30 s."""

    def run() -> Any:
        if inspect.iscoroutinefunction(function):
            return asyncio.run(function(*arguments))
        return function(*arguments)

    name = getattr(function, "__name__", "a call")
    try:
        return within(SECONDS, run, f"{name}()")
    except CheckFailed:
        raise
    except Exception as error:
        shown = ", ".join(f"{argument!r:.60}" for argument in arguments)
        raise CheckFailed(f"{name}({shown}) raised {type(error).__name__}: {error}") from error


def _start(environment: Environment, task: Task, seed: int) -> Start:
    start = call(environment.reset, task, seed)
    if not isinstance(start, Start):
        raise CheckFailed(f"reset() gave {type(start).__name__}, not Start")
    if start.messages is not None:
        _readable(start.messages, "reset()")
    return start


def _step(environment: Environment, state: Any, response: str) -> Turn:
    turn = call(environment.step, state, response)
    if not isinstance(turn, Turn):
        raise CheckFailed(f"step() gave {type(turn).__name__}, not Turn")
    if not isinstance(turn.reward, float | int) or not math.isfinite(turn.reward):
        raise CheckFailed(f"step() gave the reward {turn.reward!r} for {response!r:.40}: it must be a finite number")
    if not 0 <= turn.tool_errors <= turn.tool_calls:
        raise CheckFailed(f"step() counts {turn.tool_errors} errors in {turn.tool_calls} calls")
    if not turn.done:
        _readable(turn.messages, f"step() after {response!r:.40}")
    return turn


def _end(environment: Environment, state: Any) -> Any:
    """What the optional ``end`` gives."""
    end = getattr(environment, "end", None)
    reward = None if end is None else call(end, state)
    if reward is not None and not (isinstance(reward, float | int) and math.isfinite(reward)):
        raise CheckFailed(f"end() gave {reward!r:.80}: it must be a finite number, or None")
    return reward


def _readable(messages: Any, what: str) -> None:
    if not messages:
        raise CheckFailed(f"{what} gave no messages: the policy has nothing to read")
    for message in messages:
        good = isinstance(message, Mapping) and all(isinstance(message.get(key), str) for key in ("role", "content"))
        if not good:
            raise CheckFailed(f"{what} gave the message {message!r:.80}: role and content must be strings")


def _episode(environment: Environment, task: Task, seed: int) -> Record:
    """What the policy sees of an episode with all of :data:`RESPONSES`."""
    start = _start(environment, task, seed)
    record: Record = [(start.messages,)]
    for response in RESPONSES:
        turn = _step(environment, start.state, response)
        record.append((turn.messages, turn.reward, turn.done))
        if turn.done:
            break
    return [*record, (_end(environment, start.state),)]


def _any_response(environment: Environment) -> None:
    """Each one also as the first, because an episode may end early."""
    for task in TASKS:
        _episode(environment, task, 1)
        for response in RESPONSES:
            state = _start(environment, task, 2).state
            _step(environment, state, response)
            _end(environment, state)


def _ends_at_once(environment: Environment) -> None:
    """As after a first turn that was never written."""
    _end(environment, _start(environment, TASKS[0], 4).state)


def _deterministic(environment: Environment) -> None:
    for task in TASKS:
        if _episode(environment, task, 7) != _episode(environment, task, 7):
            raise CheckFailed("two episodes of one task, seed and responses differ")


def _episodes_apart(environment: Environment) -> None:
    """Two episodes that take turns are what they are alone."""
    task = TASKS[1]
    *alone, _ = _episode(environment, task, 7)
    starts = [_start(environment, task, 7) for _ in range(2)]
    records: list[Record] = [[(start.messages,)] for start in starts]
    for response in RESPONSES[: len(alone) - 1]:
        for start, record in zip(starts, records, strict=True):
            turn = _step(environment, start.state, response)
            record.append((turn.messages, turn.reward, turn.done))
    for start in starts:
        _end(environment, start.state)
    if records != [alone, alone]:
        raise CheckFailed("an episode changes when another one is under way: keep what belongs to it in its state")


def _task_unchanged(environment: Environment) -> None:
    for task in TASKS:
        before = copy.deepcopy(task)
        _episode(environment, task, 3)
        if task != before:
            raise CheckFailed(f"it changed its task from {before} to {task}: all episodes of a row share it")


_CHECKS: dict[str, Callable[[Environment], None]] = {
    "copes_with_any_response": _any_response,
    "ends_at_once": _ends_at_once,
    "deterministic_by_seed": _deterministic,
    "episodes_do_not_meet": _episodes_apart,
    "task_unchanged": _task_unchanged,
}
