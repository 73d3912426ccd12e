"""Wrong agents."""

import asyncio
import itertools
import random
import sys
from typing import Any

from corerl.contracts.agents import AgentContext, AgentResult, Model, Task
from planted.fault import Fault


class Twice:
    """Right: asks, reads a line, and asks again."""

    def __init__(self, context: AgentContext) -> None:
        [self.again] = context.tokenizer.encode_inside(["\nAgain: "])

    async def run(self, task: Task, model: Model) -> AgentResult | None:
        """Reward the lengths."""
        draft = await model.generate(task.prompt_ids, max_tokens=16)
        answer = await model.generate([*task.prompt_ids, *draft.token_ids, *self.again])
        lengths = (float(len(draft.text)), float(len(answer.text)))
        return AgentResult(turn_rewards=lengths, metrics={"length": lengths[1]})


class NotANumber(Twice):
    """A share of nothing."""

    async def run(self, task: Task, model: Model) -> AgentResult | None:
        await super().run(task, model)
        return AgentResult(reward=float("nan"))


class MetricOfText(Twice):
    """A metric that is a word."""

    async def run(self, task: Task, model: Model) -> AgentResult | None:
        await super().run(task, model)
        return AgentResult(metrics={"ended": "well"})  # type: ignore[dict-item]


class RewardsMoreTurns(Twice):
    """A reward for the turn that the agent itself took."""

    async def run(self, task: Task, model: Model) -> AgentResult | None:
        await super().run(task, model)
        return AgentResult(turn_rewards=(0.0, 1.0, 0.0))


class ReturnsText(Twice):
    """The answer."""

    async def run(self, task: Task, model: Model) -> Any:
        return (await model.generate(task.prompt_ids)).text


class AsksNothing(Twice):
    """Knows the answer."""

    async def run(self, task: Task, model: Model) -> AgentResult | None:
        return AgentResult(reward=1.0)


class DrawsItsPrompt(Twice):
    """A random hint, whatever the seed."""

    async def run(self, task: Task, model: Model) -> AgentResult | None:
        await model.generate([*task.prompt_ids, random.SystemRandom().randrange(32, 127)])
        return None


class CountsEpisodes(Twice):
    """Every second episode gets a hint."""

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self.seen: dict[int, int] = {}

    async def run(self, task: Task, model: Model) -> AgentResult | None:
        place = self.seen.setdefault(task.seed, len(self.seen))
        await model.generate([*task.prompt_ids, 48 + place, *self.again])
        return AgentResult(reward=float(place))


class KeepsItsEpisode(Twice):
    """The tokens are the object's, so that episodes meet."""

    async def run(self, task: Task, model: Model) -> AgentResult | None:
        self.ids = list(task.prompt_ids)
        sampled = await model.generate(self.ids)
        self.ids += sampled.token_ids
        await model.generate([*self.ids, *self.again])
        return None


class Rewrites(Twice):
    """Writes into the row."""

    async def run(self, task: Task, model: Model) -> AgentResult | None:
        task.messages[-1]["content"] = "Think. " + task.messages[-1]["content"].removeprefix("Think. ")  # type: ignore[index]
        return await super().run(task, model)


class BreaksForAll(Twice):
    """After an error nobody is asked any more."""

    is_broken = False

    async def run(self, task: Task, model: Model) -> AgentResult | None:
        try:
            sampled = await model.generate(task.prompt_ids)
        except Exception:
            self.is_broken = True
            raise
        return AgentResult(reward=float(self.is_broken or bool(sampled.token_ids) * 0.5))


class HoldsOn(Twice):
    """Asks again whatever happens."""

    async def run(self, task: Task, model: Model) -> AgentResult | None:
        for _ in itertools.count():
            try:
                await model.generate(task.prompt_ids)
                return None
            except asyncio.CancelledError:
                await asyncio.sleep(0.01)
        return None


class LeaksACancellation(Twice):
    """Its helper is cancelled, and awaited."""

    async def run(self, task: Task, model: Model) -> AgentResult | None:
        helper = asyncio.create_task(asyncio.sleep(60))
        await super().run(task, model)
        helper.cancel()
        await helper
        return None


class Exits(Twice):
    """A script that has done its work."""

    async def run(self, task: Task, model: Model) -> AgentResult | None:
        await super().run(task, model)
        sys.exit()


class LeavesATask(Twice):
    """Somebody logs for ever."""

    async def run(self, task: Task, model: Model) -> AgentResult | None:
        self.task = asyncio.create_task(asyncio.sleep(3600))
        return await super().run(task, model)


def _fault(name: str, flaw: str, wrong: Any, check: str, reason: str, patience: float = 1.0) -> Fault:
    return Fault("agents", name, flaw, wrong, Twice, check, reason, patience=patience)


_RESULTS = "gives_right_results"

FAULTS = [
    _fault("not_a_number", "a reward is NaN", NotANumber, _RESULTS, "the reward nan: it must be a finite number"),
    _fault("metric_of_text", "a metric is text", MetricOfText, _RESULTS, "the metric 'ended' 'well'"),
    _fault("rewards_more_turns", "a reward too many", RewardsMoreTurns, _RESULTS, "3 turn_rewards for 2 requests"),
    _fault("returns_text", "run() returns text", ReturnsText, _RESULTS, "gave str, not AgentResult"),
    _fault(
        "leaks_a_cancellation", "a helper is cancelled", LeaksACancellation, _RESULTS, "agent raised CancelledError"
    ),
    _fault("exits", "run() exits", Exits, _RESULTS, "the agent raised SystemExit"),
    _fault("asks_nothing", "an episode has no request", AsksNothing, _RESULTS, "has no request"),
    _fault(
        "draws_its_prompt",
        "a prompt is random",
        DrawsItsPrompt,
        "same_requests_for_a_task",
        "draw from task.seed alone",
    ),
    _fault(
        "counts_episodes", "the order of episodes decides", CountsEpisodes, "in_any_order", "on the episodes before it"
    ),
    _fault("keeps_its_episode", "the tokens are the object's", KeepsItsEpisode, "episodes_do_not_meet", "when 8 are"),
    _fault("rewrites", "it changes the row", Rewrites, "task_unchanged", "all episodes of a row share it"),
    _fault(
        "breaks_for_all",
        "an error is kept",
        BreaksForAll,
        "errors_stay_in_their_episode",
        "request of another one fails",
    ),
    _fault(
        "holds_on", "it cannot be cancelled", HoldsOn, "ends_when_cancelled", "a cancelled episode had not ended", 0.2
    ),
    _fault("leaves_a_task", "a task is left", LeavesATask, "leaves_no_task", "a task is left at the end of an episode"),
]
