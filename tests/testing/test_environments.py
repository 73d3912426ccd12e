"""Wrong environments, and the checks that catch them."""

from typing import Any

import pytest

from corerl.registry.environments import Start, Task, Turn

MORE = [{"role": "user", "content": "more?"}]


class Counting:
    """Right: three turns, each rewarded with the length of what was said."""

    def reset(self, task: Task, seed: int) -> Start:
        return Start(state=[seed])

    def step(self, state: list[int], response: str) -> Turn:
        state.append(len(response))
        return Turn(MORE, reward=float(len(response)), done=len(state) > 3)

    def close(self) -> None:
        pass


class Coroutines(Counting):
    async def reset(self, task: Task, seed: int) -> Start:  # type: ignore[override]
        return Start(state=[seed])

    async def step(self, state: list[int], response: str) -> Turn:  # type: ignore[override]
        return Counting.step(self, state, response)


class Ending(Counting):
    """A last reward of 1, once."""

    async def end(self, state: list[int]) -> float:
        state.clear()
        return 1.0


@pytest.mark.parametrize("environment", [Counting, Coroutines, Ending])
def test_right_environments_pass(outcomes: Any, environment: Any) -> None:
    assert {result.status for result in outcomes("environments", environment).values()} == {"ok"}


class RaisesOnNothing(Counting):
    def step(self, state: list[int], response: str) -> Turn:
        return Turn(MORE, reward=float(ord(response[0])))


class SaysNothing(Counting):
    def step(self, state: list[int], response: str) -> Turn:
        return Turn()


class NotANumber(Counting):
    def step(self, state: list[int], response: str) -> Turn:
        return Turn(MORE, reward=float("nan"))


class Bare(Counting):
    def step(self, state: list[int], response: str) -> Any:
        return MORE


class Noisy(Counting):
    def step(self, state: list[int], response: str) -> Turn:
        return Turn(MORE, reward=float(id(object()) % 7 + len(NOISE.append(0) or NOISE)))


NOISE: list[int] = []


class EndsWithText(Counting):
    def end(self, state: list[int]) -> Any:
        return "done"


class EndsOnlyWhatBegan(Counting):
    def end(self, state: list[int]) -> float:
        return float(state[1])


class KeepsItsEpisode(Counting):
    """The state is the object's, so that episodes meet."""

    def reset(self, task: Task, seed: int) -> Start:
        self.count = 0
        return Start()

    def step(self, state: None, response: str) -> Turn:
        self.count += 1
        return Turn(MORE, reward=float(self.count))


class Rewrites(Counting):
    def reset(self, task: Task, seed: int) -> Start:
        task.messages[-1]["content"] += " Go on."  # type: ignore[index]
        return Start(state=[seed])


@pytest.mark.parametrize(
    ("environment", "check", "words"),
    [
        (RaisesOnNothing, "copes_with_any_response", "raised IndexError"),
        (SaysNothing, "copes_with_any_response", "nothing to read"),
        (NotANumber, "copes_with_any_response", "the reward nan"),
        (Bare, "copes_with_any_response", "gave list, not Turn"),
        (Noisy, "deterministic_by_seed", "differ"),
        (EndsWithText, "copes_with_any_response", "end() gave 'done': it must be a finite number, or None"),
        (EndsOnlyWhatBegan, "ends_at_once", "raised IndexError"),
        (KeepsItsEpisode, "episodes_do_not_meet", "keep what belongs to it in its state"),
        (Rewrites, "task_unchanged", "all episodes of a row share it"),
    ],
)
def test_a_wrong_environment_fails(outcomes: Any, environment: Any, check: str, words: str) -> None:
    result = outcomes("environments", environment)[check]
    assert result.status == "failed"
    assert words in result.reason
