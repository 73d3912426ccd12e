"""Checks of environments: the contract of :mod:`corerl_envs`."""

import contextlib
import copy
import dataclasses
import math
import random
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from corerl.registry import Selected, blocking
from corerl_envs import EndingEnvironment, Environment, EnvironmentFactory, Start, Task, Turn
from corerl_testing import surroundings
from corerl_testing.deadline import only_here, within
from corerl_testing.fresh import same_in_a_fresh_process
from corerl_testing.results import CheckFailed, Run

SECONDS = 30.0
"""seconds for one call"""

MANY = 33
"""number of simultaneous episodes"""

THREADS = 8

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
        yield name, partial(_with, check, selected)
    yield "objects_do_not_meet", partial(_objects_apart, selected)
    yield "same_in_a_fresh_process", partial(same_in_a_fresh_process, outcomes, selected)
    yield "leaves_the_process_alone", partial(_leaves_the_process_alone, selected)


def _with(check: Callable[[Environment], None], selected: Selected[EnvironmentFactory]) -> None:
    with _made(selected) as environment:
        check(environment)


@contextlib.contextmanager
def _made(selected: Selected[EnvironmentFactory]) -> Iterator[Environment]:
    """An environment, closed at the end."""
    environment = within(SECONDS, lambda: selected.load()(), "the making of an environment")
    try:
        yield environment
    finally:
        within(SECONDS, environment.close, "close()")


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a plain method or a coroutine, within 30 s; coroutines share one event loop, as in a run."""
    name = getattr(function, "__name__", "a call")
    shown = ", ".join(f"{argument!r:.60}" for argument in arguments)
    try:
        return within(SECONDS, partial(blocking(function), *arguments), f"{name}({shown})")
    except CheckFailed:
        raise
    except Exception as error:
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
    """The result of the optional ``end``."""
    reward = call(environment.end, state) if isinstance(environment, EndingEnvironment) else None
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
    """The policy's view of an episode with all of :data:`RESPONSES`."""
    start = _start(environment, task, seed)
    record: Record = [(start.messages,)]
    turns: list[tuple[Turn, Any]] = []
    for response in RESPONSES:
        turn = _step(environment, start.state, response)
        turns.append((turn, copy.deepcopy(turn.messages)))
        record.append((turns[-1][1], turn.reward, turn.done))
        if turn.done:
            break
    last = _end(environment, start.state)
    if any(turn.messages != as_given for turn, as_given in turns):
        raise CheckFailed("messages that step() had returned have changed: return new ones")
    return [*record, (last,)]


def _any_response(environment: Environment) -> None:
    """Each response also as the first one, because an episode may end early."""
    for task in TASKS:
        _episode(environment, task, 1)
        for response in RESPONSES:
            state = _start(environment, task, 2).state
            _step(environment, state, response)
            _end(environment, state)


def _ends_at_once(environment: Environment) -> None:
    """End an episode without a turn."""
    _end(environment, _start(environment, TASKS[0], 4).state)


def _deterministic(environment: Environment) -> None:
    for task in TASKS:
        if _episode(environment, task, 7) != _episode(environment, task, 7):
            raise CheckFailed("two episodes of one task, seed and responses differ")


def _task_unchanged(environment: Environment) -> None:
    for task in TASKS:
        before = copy.deepcopy(task)
        _episode(environment, task, 3)
        if task != before:
            raise CheckFailed(f"it changed its task from {before} to {task}: all episodes of a row share it")


class Open:
    """A running episode, with its own order of responses."""

    def __init__(self, environment: Environment, task: Task, seed: int, first: int = 0) -> None:
        self._environment = environment
        self._left = [*RESPONSES[first:], *RESPONSES[:first]]
        start = _start(environment, task, seed)
        self._state = start.state
        self.record: Record = [(start.messages,)]

    def go_on(self) -> bool:
        """Take a turn; returns whether there is another one."""
        turn = _step(self._environment, self._state, self._left.pop(0))
        self.record.append((turn.messages, turn.reward, turn.done))
        return bool(self._left) and not turn.done

    def end(self) -> Record:
        """The policy's view so far, after the end."""
        return [*self.record, (_end(self._environment, self._state),)]

    def run(self) -> Record:
        """Take all turns, and end."""
        while self.go_on():
            pass
        return self.end()


def _episodes_apart(environment: Environment) -> None:
    """Interleaved episodes of one row, each with its own responses, equal the same episodes alone."""
    task = TASKS[1]
    alone = [Open(environment, task, 7, first).run() for first in range(len(RESPONSES))]
    open_ones = [Open(environment, copy.deepcopy(task), 7, n % len(RESPONSES)) for n in range(MANY)]
    going = open_ones
    while going:
        going = [each for each in going if each.go_on()]
    for n, each in enumerate(open_ones):
        if each.end() != alone[n % len(RESPONSES)]:
            raise CheckFailed(
                f"an episode changes when {MANY} of one row are under way: keep what belongs to it in its state"
            )


def _episodes_in_threads(environment: Environment) -> None:
    """Simultaneous episodes of several rows."""
    alone = [Open(environment, TASKS[n % 2], n).run() for n in range(MANY)]

    def one(n: int) -> Record:
        return only_here(lambda: Open(environment, copy.deepcopy(TASKS[n % 2]), n).run())

    with ThreadPoolExecutor(THREADS) as pool:
        if [*pool.map(one, range(MANY))] != alone:
            raise CheckFailed(
                f"an episode changes when others run in {THREADS} threads: calls of several run at a time"
            )


def _tasks_by_content(environment: Environment) -> None:
    """Equal tasks in other objects: the trainer makes a new Task for each episode, and an ``id`` may repeat."""
    alone = [_episode(environment, task, 7) for task in TASKS]
    for which in random.Random(0).choices(range(len(TASKS)), k=MANY):
        if _episode(environment, dataclasses.replace(TASKS[which]), 7) != alone[which]:
            raise CheckFailed("an episode of an equal task, which is another object, differs")


def _objects_apart(selected: Selected[EnvironmentFactory]) -> None:
    """Training and validation have separate environments, which get tasks in different orders."""
    with _made(selected) as first, _made(selected) as second:
        forth = [_episode(first, task, 7) for task in TASKS]
        back = [_episode(second, task, 7) for task in reversed(TASKS)][::-1]
        if forth != back:
            raise CheckFailed(
                "an episode depends on the tasks before: a second object, with the other task first, differs"
            )
        mine, other = Open(first, TASKS[1], 7), Open(second, TASKS[0], 8)
        while mine.go_on() and other.go_on():
            pass
        if mine.record != forth[1][: len(mine.record)]:
            raise CheckFailed("an episode changes when one of a second object is under way")
        other.end()
    with _made(selected) as third, _made(selected) as fourth:
        fourth.close()
        if _episode(third, TASKS[1], 7) != forth[1]:
            raise CheckFailed("an episode changes when a second object is closed")


def outcomes(selected: Selected[EnvironmentFactory], backwards: bool = False) -> list[tuple[str, str]]:
    """Each task with its episode."""
    with _made(selected) as environment:
        given = [(task, seed) for seed in (7, 8) for task in TASKS]
        found = [
            (f"the task {task.messages[-1]['content']!r} with seed {seed}", repr(_episode(environment, task, seed)))
            for task, seed in (reversed(given) if backwards else given)
        ]
    return found[::-1] if backwards else found


def _leaves_the_process_alone(selected: Selected[EnvironmentFactory]) -> None:
    """The process of the run is unchanged."""

    def episodes() -> None:
        for _ in range(4):
            outcomes(selected)

    surroundings.expect_left_alone(episodes, 16)


_CHECKS: dict[str, Callable[[Environment], None]] = {
    "copes_with_any_response": _any_response,
    "ends_at_once": _ends_at_once,
    "deterministic_by_seed": _deterministic,
    "episodes_do_not_meet": _episodes_apart,
    "episodes_in_threads_do_not_meet": _episodes_in_threads,
    "tasks_by_content": _tasks_by_content,
    "task_unchanged": _task_unchanged,
}
