"""Wrong environments."""

import os
import random
import re
import threading
import time
from typing import Any, ClassVar

from corerl_envs import Start, Task, Turn
from planted.fault import Fault

MORE = [{"role": "user", "content": "more?"}]


class Counting:
    """Right: three turns, each rewarded by the length of the response, plus the task's target."""

    def reset(self, task: Task, seed: int) -> Start:
        """The state is a list of past responses."""
        return Start(state=[len(str(task.ground_truth)) + seed])

    def step(self, state: Any, response: str) -> Turn:
        """Reward the length."""
        state.append(len(response))
        return Turn(MORE, reward=float(sum(state)), done=len(state) > 3)

    def close(self) -> None:
        """Nothing to close."""


class RaisesOnNothing(Counting):
    """Looks at the first character."""

    def step(self, state: Any, response: str) -> Turn:
        return Turn(MORE, reward=float(ord(response[0])))


class SaysNothing(Counting):
    """No message, and not done."""

    def step(self, state: Any, response: str) -> Turn:
        return Turn()


class NotANumber(Counting):
    """A mean over no words."""

    def step(self, state: Any, response: str) -> Turn:
        words = response.split()
        return Turn(MORE, reward=sum(map(len, words)) / len(words) if words else float("nan"))


class Bare(Counting):
    """Returns only the messages."""

    def step(self, state: Any, response: str) -> Any:
        return MORE


class GrowingMessages(Counting):
    """One list of messages an episode."""

    def reset(self, task: Task, seed: int) -> Start:
        return Start([])

    def step(self, state: Any, response: str) -> Turn:
        state.append({"role": "user", "content": str(len(state))})
        return Turn(state, reward=1.0)


class MoreErrorsThanCalls(Counting):
    """Counts an error without a call."""

    def step(self, state: Any, response: str) -> Turn:
        return Turn(MORE, tool_errors=1)


class Noisy(Counting):
    """A random number that the seed does not decide."""

    def step(self, state: Any, response: str) -> Turn:
        return Turn(MORE, reward=random.SystemRandom().random())


class EndsWithText(Counting):
    """A word at the end."""

    def end(self, state: Any) -> Any:
        """No number."""
        return "done"


class EndsOnlyWhatBegan(Counting):
    """Takes it that there was a turn."""

    def end(self, state: Any) -> float:
        """The first turn's length."""
        return float(state[1])


class KeepsItsEpisode(Counting):
    """The state is the object's, so that episodes meet."""

    def reset(self, task: Task, seed: int) -> Start:
        self.count = 0
        return Start()

    def step(self, state: Any, response: str) -> Turn:
        self.count += len(response)
        return Turn(MORE, reward=float(self.count))


class ByRow(Counting):
    """One state a row: the episodes of a group share it."""

    def __init__(self) -> None:
        self.states: dict[str, list[int]] = {}

    def reset(self, task: Task, seed: int) -> Start:
        key = f"{task}{seed}"
        self.states[key] = [seed]
        return Start(key)

    def step(self, state: Any, response: str) -> Turn:
        return super().step(self.states[state], response)


class ThirtyTwoSlots(Counting):
    """The thirty-third episode overwrites the first."""

    def __init__(self) -> None:
        self.slots: list[Any] = [None] * 32
        self.begun = 0

    def reset(self, task: Task, seed: int) -> Start:
        slot = self.begun % len(self.slots)
        self.begun += 1
        self.slots[slot] = [seed]
        return Start(slot)

    def step(self, state: Any, response: str) -> Turn:
        return super().step(self.slots[state], response)


class OneAtATime(Counting):
    """Keeps the response in the object while it works."""

    def step(self, state: Any, response: str) -> Turn:
        self.response = response
        time.sleep(0.001)
        return super().step(state, self.response)


class ByIdentity(Counting):
    """Caches a task by its ``id``, which a later one may reuse."""

    def __init__(self) -> None:
        self.targets: dict[int, int] = {}

    def reset(self, task: Task, seed: int) -> Start:
        return Start([self.targets.setdefault(id(task), len(str(task.ground_truth))) + seed])


class FirstTask(Counting):
    """The first task's target is used for all."""

    def __init__(self) -> None:
        self.target: int | None = None

    def reset(self, task: Task, seed: int) -> Start:
        if self.target is None:
            self.target = len(str(task.ground_truth))
        return Start([self.target + seed])


class ClosesAll(Counting):
    """``close`` is that of the class."""

    is_open: ClassVar[bool] = True

    def __init__(self) -> None:
        ClosesAll.is_open = True

    def step(self, state: Any, response: str) -> Turn:
        return Turn(MORE, reward=float(ClosesAll.is_open), done=not ClosesAll.is_open)

    def close(self) -> None:
        ClosesAll.is_open = False


class Rewrites(Counting):
    """Writes into the row."""

    def reset(self, task: Task, seed: int) -> Start:
        task.messages[-1]["content"] += " Go on."  # type: ignore[index]
        return Start(state=[seed])


class OrderOfASet(Counting):
    """Asks for the first of a set of words."""

    def step(self, state: Any, response: str) -> Turn:
        word = next(iter(set((response or "north south east west up down").split())), "")
        return Turn([{"role": "user", "content": word}], reward=1.0)


_FIRST: list[str] = []


class FirstOfTheProcess(Counting):
    """The first task of the process decides, for all objects."""

    def reset(self, task: Task, seed: int) -> Start:
        _FIRST.append(str(task.ground_truth))
        return Start([len(_FIRST[0]) + seed])


class SeedsTheProcess(Counting):
    """Seeds the module random, which data and sampling use as well."""

    def reset(self, task: Task, seed: int) -> Start:
        random.seed(seed)
        return Start([random.randrange(100)])


class ThreadAnEpisode(Counting):
    """A thread that waits for ever."""

    def reset(self, task: Task, seed: int) -> Start:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return super().reset(task, seed)


class Exits(Counting):
    """A response that it does not know ends the process."""

    def step(self, state: Any, response: str) -> Turn:
        if not re.search(r"\w", response):
            os._exit(1)
        return super().step(state, response)


_COPES, _NEW, _ALONE = "copes_with_any_response", "same_in_a_fresh_process", "leaves_the_process_alone"


def _fault(name: str, flaw: str, wrong: Any, check: str, reason: str) -> Fault:
    return Fault("environments", name, flaw, wrong, Counting, check, reason)


FAULTS = [
    _fault("raises_on_nothing", "an empty response raises", RaisesOnNothing, _COPES, "raised IndexError"),
    _fault("says_nothing", "a turn has no message", SaysNothing, _COPES, "nothing to read"),
    _fault("not_a_number", "a reward is NaN", NotANumber, _COPES, "the reward nan"),
    _fault("bare", "step() returns messages", Bare, _COPES, "gave list, not Turn"),
    _fault("more_errors_than_calls", "errors outnumber calls", MoreErrorsThanCalls, _COPES, "1 errors in 0 calls"),
    _fault("growing_messages", "messages change later", GrowingMessages, _COPES, "have changed: return new ones"),
    _fault("ends_with_text", "end() returns text", EndsWithText, _COPES, "end() gave 'done': it must be a finite"),
    _fault("exits", "a response ends the process", Exits, _COPES, "ended the process (exit code 1)"),
    _fault("ends_only_what_began", "end() needs a turn", EndsOnlyWhatBegan, "ends_at_once", "raised IndexError"),
    _fault("noisy", "a reward is random whatever the seed", Noisy, "deterministic_by_seed", "differ"),
    _fault("keeps_its_episode", "the state is the object's", KeepsItsEpisode, "episodes_do_not_meet", "in its state"),
    _fault(
        "by_row", "episodes of a row share a state", ByRow, "episodes_do_not_meet", "when 33 of one row are under way"
    ),
    _fault("thirty_two_slots", "there are 32 states", ThirtyTwoSlots, "episodes_do_not_meet", "when 33 of one row"),
    _fault(
        "one_at_a_time", "a response is the object's", OneAtATime, "episodes_in_threads_do_not_meet", "in 8 threads"
    ),
    _fault(
        "by_identity", "tasks are known by id()", ByIdentity, "tasks_by_content", "which is another object, differs"
    ),
    _fault("rewrites", "it changes the row", Rewrites, "task_unchanged", "all episodes of a row share it"),
    _fault("first_task", "the first task decides", FirstTask, "objects_do_not_meet", "depends on the tasks before"),
    _fault(
        "closes_all", "close() is that of all objects", ClosesAll, "objects_do_not_meet", "a second object is closed"
    ),
    _fault("order_of_a_set", "a set's order is in a message", OrderOfASet, _NEW, "with another PYTHONHASHSEED"),
    _fault(
        "first_of_the_process", "the first task of all objects decides", FirstOfTheProcess, _NEW, "in another order"
    ),
    _fault(
        "seeds_the_process", "it seeds the module random", SeedsTheProcess, _ALONE, "the state of the module random"
    ),
    _fault("thread_an_episode", "each episode leaves a thread", ThreadAnEpisode, _ALONE, "more threads"),
]
