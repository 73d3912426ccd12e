"""Groups, played and scored."""

import asyncio
import dataclasses
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from corerl.batch.rollouts import Rollouts
from corerl.contracts.reward_managers import RewardManager, RewardResult
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data.prompts import Prompt
from corerl.rollout.episodes import EpisodePlayer
from corerl.rollout.request_queue import RequestQueue
from corerl.rollout.scored import ScoredRollouts
from corerl.rollout.scores import Scores
from corerl.rollout.scoring import add_environment

T = TypeVar("T")

NO_SCORE = RewardResult(None, error="no scorer was asked", error_kind="unscored")


@dataclasses.dataclass
class Group:
    """A prompt and how its responses are sampled.

    Attributes:
        seed: of the group; each response has a seed of its own, from this one and its number.
        name: unique in the run, for the ids of requests.
        batch: the name of the groups that are scored together by a reward manager of whole batches.
        place: in that batch.
        on_begin: called just before its first request is sent.
        generated: when its last response was complete, on the clock of ``time.perf_counter``.
    """

    prompt: Prompt
    seed: int
    sampling: SamplingParams
    name: str
    batch: str
    place: int
    on_begin: Callable[[], None] = lambda: None
    generated: float = 0.0


class Player:
    """Plays groups: generates their responses, in one turn or with an environment, and scores each as it ends.

    Args:
        reward: None: no scorer scores the responses.
        max_response_length: ``data.max_response_length``.
        episodes: plays responses in several turns; None: a response is one turn.
    """

    def __init__(
        self,
        queue: RequestQueue,
        tokenizer: ChatTokenizer,
        reward: RewardManager | None,
        max_response_length: int,
        episodes: EpisodePlayer | None = None,
    ) -> None:
        self._queue, self._tokenizer, self._episodes = queue, tokenizer, episodes
        self._scores = Scores(reward, max_response_length)

    @property
    def plays_episodes(self) -> bool:
        """Responses are in several turns."""
        return self._episodes is not None

    async def play(self, group: Group) -> ScoredRollouts:
        """``sampling.n`` scored responses to the group's prompt."""
        if self._episodes is None:
            return await self._scored(group, group.place, functools.partial(self._single_turn, group))
        n = group.sampling.n
        episode = functools.partial(
            self._episodes.play, group.prompt, group.seed, group.sampling, group.name, on_begin=group.on_begin
        )
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
        prompt = group.prompt
        completions = await self._queue.complete(
            GenerationRequest(group.name, prompt.token_ids, sampling, prompt.media), group.on_begin
        )
        return Rollouts.collect([prompt], [completions], self._tokenizer.decode)

    async def _scored(self, group: Group, place: int, generate: Callable[[], Awaitable[Rollouts]]) -> ScoredRollouts:
        with self._scores.expecting(group.batch, place) as part:
            rollouts = await generate()
            group.generated = time.perf_counter()
            results = await self._scores.of(part, rollouts)
        if rollouts.episodes is not None:
            results = add_environment(results, rollouts.episodes)
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
