"""What the checks of environments do beside catching the planted faults."""

import asyncio
import re
from typing import Any

import pytest
from planted.environments import Counting

from corerl_envs import Start, Task, Turn
from corerl_testing import environments, isolated


class Coroutines(Counting):
    """All calls of a run are in one event loop: a lock of it may be kept."""

    def __init__(self) -> None:
        self.lock: asyncio.Lock | None = None

    async def reset(self, task: Task, seed: int) -> Start:  # type: ignore[override]
        self.lock = self.lock or asyncio.Lock()
        async with self.lock:
            await asyncio.sleep(0)
        return super().reset(task, seed)

    async def step(self, state: Any, response: str) -> Turn:  # type: ignore[override]
        assert self.lock is not None
        async with self.lock:
            await asyncio.sleep(0)
        return super().step(state, response)


class Ending(Counting):
    """A last reward of 1, once."""

    async def end(self, state: list[int]) -> float:
        state.clear()
        return 1.0


@pytest.mark.parametrize("environment", [Coroutines, Ending])
def test_right_environments_pass(outcomes: Any, environment: Any) -> None:
    assert {result.reason for result in outcomes("environments", environment).values()} == {""}


def test_an_environment_that_holds_the_lock_is_caught(outcomes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Backtracks(Counting):  # local, so that the process of the checks is a fork, with the short deadlines
        def step(self, state: Any, response: str) -> Turn:
            re.match(r"(\w+\s?)+$", f"{response}!")
            return super().step(state, response)

    monkeypatch.setattr(environments, "SECONDS", 1.0)
    monkeypatch.setattr(isolated, "GRACE", 1.0)
    result = outcomes("environments", Backtracks, only="copes_with_any_response")["copes_with_any_response"]
    assert result.status == "failed"
    assert "step(" in result.reason and "had not ended after 1 s and let no other thread" in result.reason
