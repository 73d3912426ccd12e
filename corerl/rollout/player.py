"""Groups, played and scored."""

import asyncio
import dataclasses
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from corerl.batch.rollouts import Rollouts
from corerl.contracts.reward_managers import RewardManager, RewardResult
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data.prompts import Prompt
from corerl.rollout.episodes import Episodes
from corerl.rollout.groups import Group
from corerl.rollout.request_queue import RequestQueue
from corerl.rollout.scored import ScoredRollouts
from corerl.rollout.scores import Scores
from corerl.rollout.scoring import add_agent

T = TypeVar("T")

NO_SCORE = RewardResult(None, error="no scorer was asked", error_kind="unscored")


class ScoringWorkers(Protocol):
    """Decode and score, in processes beside the controller."""

    async def scored(self, rollouts: Rollouts, group: Group) -> tuple[Rollouts, list[RewardResult] | None]:
        """Responses to a prompt with their texts, and one result each; None: the controller's reward manager scores."""
        ...


class Player:
    """Plays groups: generates their responses, in one turn or with an agent, and scores each as it ends.

    Args:
        reward: None: no scorer scores the responses.
        max_response_length: of ``data``.
        episodes: plays each response; None: the responses of a group are one request.
        workers: decode and score the responses; None: this process does.
    """

    def __init__(
        self,
        queue: RequestQueue,
        tokenizer: ChatTokenizer,
        reward: RewardManager | None,
        max_response_length: int,
        episodes: Episodes | None = None,
        workers: ScoringWorkers | None = None,
    ) -> None:
        self._queue, self._tokenizer, self._episodes, self._workers = queue, tokenizer, episodes, workers
        self._scores = Scores(reward, max_response_length)

    @property
    def plays_episodes(self) -> bool:
        """Responses are those of an agent."""
        return self._episodes is not None

    def close(self) -> None:
        """Close what plays the episodes."""
        if self._episodes is not None:
            self._episodes.close()

    async def idle(self) -> None:
        """Wait until no request is under way, once the players of all groups are cancelled."""
        await self._queue.idle()

    async def play(self, group: Group) -> ScoredRollouts:
        """``sampling.n`` scored responses to the group's prompt."""
        if self._episodes is None:
            return await self._scored(group, group.place, functools.partial(self._single_turn, group))
        n, episode = group.sampling.n, functools.partial(self._episodes.play, group)
        played = await all_or_none(
            self._scored(group, group.place * n + sample, functools.partial(episode, sample)) for sample in range(n)
        )
        scored = ScoredRollouts.join(played)
        return dataclasses.replace(scored, rollouts=dataclasses.replace(scored.rollouts, group_ids=[0] * n))

    async def play_all(
        self, prompts: Sequence[Prompt], seeds: Sequence[int], sampling: SamplingParams, name: str
    ) -> ScoredRollouts:
        """Groups of one batch, in the order of the prompts."""
        groups = [
            Group(prompt, seed, sampling, f"{name}-{place}", name, place)
            for place, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
        ]
        return ScoredRollouts.join(await all_or_none(map(self.play, groups)))

    async def _single_turn(self, group: Group) -> Rollouts:
        sampling = dataclasses.replace(group.sampling, seed=group.seed)
        prompt, start = group.prompt, time.perf_counter()
        seconds = {"began": time.time()}

        def on_sent(ago: float = 0.0) -> None:
            seconds["sent"] = time.perf_counter() - start - ago
            group.on_begin()

        completions = await self._queue.complete(
            GenerationRequest(group.name, prompt.token_ids, sampling, prompt.media), on_sent
        )
        seconds["answered"] = time.perf_counter() - start
        if self._workers is None:
            rollouts = Rollouts.collect([prompt], [completions], self._tokenizer.decode)
        else:
            n = len(completions)
            rollouts = Rollouts([prompt] * n, completions, [""] * n, [0] * n)
        return dataclasses.replace(rollouts, seconds=[seconds] * len(rollouts))

    async def _scored(self, group: Group, place: int, generate: Callable[[], Awaitable[Rollouts]]) -> ScoredRollouts:
        with self._scores.expecting(group.batch, place) as part:
            rollouts = await generate()
            generated = group.generated = time.perf_counter()
            results = None
            if self._workers is not None:
                rollouts, results = await self._workers.scored(rollouts, group)
            results = results or await self._scores.of(part, rollouts)
        scored = time.perf_counter() - generated
        for seconds in [*rollouts.seconds, *(episode.seconds for episode in rollouts.episodes or ())]:
            seconds["scored"] = scored
        if rollouts.episodes is not None:
            results = add_agent(results, rollouts.episodes)
        return ScoredRollouts(rollouts, results or [NO_SCORE] * len(rollouts))


async def all_or_none(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all; once one fails, the others are cancelled, and end before its error is raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
