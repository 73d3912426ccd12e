"""The role that plays episodes, decodes and scores: processes beside the controller, which takes their requests."""

import dataclasses
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from corerl.batch.rollouts import Episode, Rollouts
from corerl.contracts.agents import AgentFactory
from corerl.contracts.config import TrainConfig
from corerl.contracts.dispatch import dispatch
from corerl.contracts.reward_managers import PartwiseRewardManager, RewardResult
from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.contracts.runtimes import Replicas, Role
from corerl.contracts.token_columns import TokenValues
from corerl.contracts.workers import OnSent, Requests
from corerl.data.prompts import Prompt
from corerl.data.tokenizer import load_tokenizer
from corerl.errors import CoreRLError, EngineDeadError, RefusedError, RunError
from corerl.plugins import load_plugins
from corerl.registry import Selected
from corerl.registry.parts import resolve_parts, select_agent, select_others
from corerl.rollout.episodes import make_episodes
from corerl.rollout.groups import Group
from corerl.rollout.player import all_or_none
from corerl.rollout.request_queue import RequestQueue
from corerl.rollout.scores import results_of_part
from corerl.rollout.scoring import load_reward_manager, select_scorers
from corerl.terminal.notices import say

KEY = "rollout.num_workers"

ENDING = 120.0
"""seconds beyond ``rollout.agent_timeout`` in which a cancelled agent ends; then its worker is ended"""
SCORING = 3600.0
"""seconds in which responses are scored, the wait for those before them included; then their worker is ended"""


def episode_role(config: TrainConfig, agent: Selected[AgentFactory] | None) -> Role | None:
    """The role of the workers that play episodes, decode and score; None: the controller does."""
    rollout = config.rollout
    if not rollout.num_workers:
        return None
    timeout = ENDING + (0.0 if agent is None else rollout.agent_timeout)
    if agent is None or rollout.multi_turn.score_response:
        timeout += SCORING
    part = config.reward.manager if agent is None else agent.entry.name
    return Role("episodes", KEY, str(part), distributed=True, workers=rollout.num_workers, timeout=timeout)


@dataclasses.dataclass(frozen=True)
class EpisodeOrder:
    """An episode to be played: its number in its group, and the plain values of the group.

    Attributes:
        prompt: without media that are no columns of tokens.
        sampling: of one response.
        session: none: any worker may play it.
    """

    prompt: Prompt
    seed: int
    sampling: SamplingParams
    name: str
    sample: int
    session: str = ""

    @classmethod
    def of(cls, group: Group, sample: int) -> "EpisodeOrder":
        prompt, media = group.prompt, group.prompt.media
        if media:
            kept = {name: value for name, value in media.items() if isinstance(value, TokenValues)}
            prompt = dataclasses.replace(prompt, media=kept)
        sampling = dataclasses.replace(group.sampling, n=1)
        return cls(prompt, group.seed, sampling, group.name, sample)

    def group(self) -> Group:
        """The group, in the worker; it has no batch there."""
        return Group(self.prompt, self.seed, self.sampling, self.name, "", 0)


@dataclasses.dataclass(frozen=True)
class Played:
    """An episode that has ended.

    Attributes:
        prompt: of its response, if it is not the group's.
    """

    prompt: Prompt | None
    completion: Completion
    response: str
    episode: Episode

    @classmethod
    def of(cls, rollouts: Rollouts, order: EpisodeOrder) -> "Played":
        [prompt], [completion], [response] = rollouts.prompts, rollouts.completions, rollouts.responses
        assert rollouts.episodes is not None
        own = None if prompt is order.prompt else prompt
        return cls(own, completion, response, rollouts.episodes[0])

    def rollouts(self, prompt: Prompt) -> Rollouts:
        """As one response; ``prompt`` is the group's."""
        own = prompt if self.prompt is None else dataclasses.replace(self.prompt, media=prompt.media)
        return Rollouts([own], [self.completion], [self.response], [0], [self.episode])


OnPlayed = Callable[[int, Played], None]
"""called with an order's position and its episode"""


@dataclasses.dataclass(frozen=True)
class ScoreOrder:
    """Responses to a prompt, to be decoded and scored. It goes through a :class:`RequestQueue`, as a request does.

    Attributes:
        prompt: without tokens and media.
        token_ids: of each response; ranges of the same lengths if there are texts.
        texts: of an agent; None: the worker decodes.
        sampling: of the responses; their number is the work.
        session: none: any worker may score them.
    """

    prompt: Prompt
    token_ids: Sequence[Sequence[int]]
    truncated: Sequence[bool]
    texts: Sequence[str] | None
    sampling: SamplingParams
    request_id: str
    session: str = ""

    @classmethod
    def of(cls, rollouts: Rollouts, group: Group) -> "ScoreOrder":
        prompt = dataclasses.replace(rollouts.prompts[0], token_ids=(), media={})
        token_ids = [completion.token_ids for completion in rollouts.completions]
        sampling, texts = dataclasses.replace(group.sampling, n=len(rollouts)), None
        if rollouts.episodes is not None:
            token_ids, texts = [range(len(each)) for each in token_ids], rollouts.responses
        return cls(prompt, token_ids, rollouts.truncated, texts, sampling, group.name)

    def rollouts(self, decode: Callable[[Sequence[Sequence[int]]], list[str]]) -> Rollouts:
        """What of the responses a reward manager sees."""
        completions = [
            Completion(token_ids, (), "length" if truncated else "stop", 0)
            for token_ids, truncated in zip(self.token_ids, self.truncated, strict=True)
        ]
        if self.texts is None:
            return Rollouts.collect([self.prompt], [completions], decode)
        return Rollouts([self.prompt] * len(completions), completions, [*self.texts], [0] * len(completions))

    def with_media(self, scored: Any) -> Any:
        """``scored``: the result of a worker has no columns of tokens."""
        return scored


class Scored(NamedTuple):
    """Texts, if the worker has decoded them, and results, if it has scored them."""

    texts: list[str] | None
    results: list[RewardResult] | None


class _NoRequests:
    """In the place of those of a call."""

    async def complete(self, request: GenerationRequest, on_sent: OnSent) -> list[Completion]:
        raise RunError("no episode is being played")


class EpisodeWorker:
    """Plays episodes, with an agent of its own, decodes and scores.

    Args:
        sources: data sources of the responses; their reward manager scores parts. None: the worker scores nothing.
    """

    def __init__(self, config: TrainConfig, sources: Sequence[str] | None = None) -> None:
        plugins = load_plugins(tuple(config.plugins.load), tuple(config.plugins.disable))
        self._tokenizer = load_tokenizer(config.model, plugins)
        agent, others = select_agent(config, plugins.registries), select_others(config, plugins.registries)
        self._episodes = make_episodes(agent, others, config, self._tokenizer, _NoRequests(), plugins.hook)
        self._max_response_length = config.data.max_response_length
        self._reward: PartwiseRewardManager | None = None
        if sources is not None:
            parts = resolve_parts(config, plugins.registries)
            scorers = select_scorers(sources, parts, plugins.registries)
            share = math.ceil(config.reward.num_workers / max(1, config.rollout.num_workers))
            rewards = dataclasses.replace(config.reward, num_workers=share)
            reward = load_reward_manager(scorers, rewards, parts.reward_manager)
            assert isinstance(reward, PartwiseRewardManager)
            self._reward = reward

    @dispatch("spread")
    async def play(self, orders: Sequence[EpisodeOrder], on_played: OnPlayed, requests: Requests) -> None:
        """Play episodes, one after the other; calls may overlap, all in one event loop.

        Args:
            requests: take the agents' requests.

        Raises:
            RunError: a request failed, or the agent broke its contract.
        """
        assert self._episodes is not None
        episodes = dataclasses.replace(self._episodes, queue=requests)
        for position, order in enumerate(orders):
            on_played(position, Played.of(await episodes.play(order.group(), order.sample), order))

    @dispatch("spread")
    async def score(
        self, orders: Sequence[ScoreOrder], on_scored: Callable[[int, Any], None], requests: Requests
    ) -> None:
        """Decode and score, all orders at the same time.

        Args:
            on_scored: called with an order's position and its :class:`Scored`, or a RunError of its scores alone.
            requests: none.
        """

        async def score(position: int, order: ScoreOrder) -> None:
            rollouts = order.rollouts(self._tokenizer.decode)
            texts = rollouts.responses if order.texts is None else None
            try:
                reward, most = self._reward, self._max_response_length
                results = None if reward is None else await results_of_part(reward, rollouts, most)
            except CoreRLError as error:
                on_scored(position, RunError(str(error)))  # not every error can be pickled
            else:
                on_scored(position, Scored(texts, results))

        await all_or_none(score(position, order) for position, order in enumerate(orders))

    @dispatch("all")
    def close(self) -> None:
        """Close the agent, the endpoint and the reward manager; the event loop has ended."""
        if self._episodes is not None:
            self._episodes.close()
        if self._reward is not None:
            self._reward.close()


class WorkerEpisodes:
    """Plays episodes in workers (:class:`corerl.rollout.episodes.Episodes`), decodes and scores there.

    A worker that ends is started again in the background.

    Args:
        workers: :class:`EpisodeWorker`, or a group of them.
        requests: take those of all workers.
        max_restarts: of workers; later ones are not started again.
    """

    def __init__(self, workers: EpisodeWorker, requests: Requests, max_restarts: int) -> None:
        self._workers, self._requests, self._left = workers, requests, max_restarts
        self._lost = 0
        self._is_closed = False
        self._counting = threading.Lock()
        orders: Any = workers  # in the place of requests
        self._scoring: Any = RequestQueue(lambda given, on_scored: orders.score(given, on_scored, _NoRequests()))
        self._replicas = workers if isinstance(workers, Replicas) else None
        if self._replicas is not None:
            self._replicas.on_loss(self._start_again)

    async def play(self, group: Group, sample: int) -> Rollouts:
        """See :class:`corerl.rollout.episodes.Episodes`."""
        played: list[Played] = []
        requests = _OfEpisode(self._requests, group)
        try:
            await self._workers.play([EpisodeOrder.of(group, sample)], lambda _, each: played.append(each), requests)
        except CoreRLError:
            if requests.failure is not None:
                raise requests.failure from None  # the worker has raised a copy of it
            raise
        return played[0].rollouts(group.prompt)

    async def scored(self, rollouts: Rollouts, group: Group) -> tuple[Rollouts, list[RewardResult] | None]:
        """Responses to a prompt with their texts, and one result each; None: the controller's reward manager scores.

        Raises:
            RunError: the reward manager broke its contract.
        """
        scored: Scored | RunError = await self._scoring.complete(ScoreOrder.of(rollouts, group))
        if isinstance(scored, RunError):
            raise scored
        if scored.texts is not None:
            rollouts = dataclasses.replace(rollouts, responses=scored.texts)
        return rollouts, scored.results

    def measured(self) -> Mapping[str, float]:
        """Metrics."""
        return {"rollout/episode_workers_lost": float(self._lost)}

    def close(self) -> None:
        """Start no worker again; the runtime ends all."""
        self._is_closed = True

    def _start_again(self, error: EngineDeadError) -> None:
        """In the background; the listener of a loss."""
        with self._counting:
            if self._is_closed:
                return
            self._lost += 1
            self._left -= 1
            if self._left < 0:
                say(f"{error}\nrollout.max_restarts is reached: the run continues without it")
                return
        say(f"{error}\nit is started again in the background, and its episodes are played again")
        threading.Thread(target=self._restart, name="corerl-episodes", daemon=True).start()

    def _restart(self) -> None:
        try:
            if self._replicas is not None and not self._is_closed:
                self._replicas.restart_lost()
        except CoreRLError as error:
            if not self._is_closed:  # an error of the whole run is raised by its other threads, too
                say(f"a worker that plays episodes could not be started again: {error}")


class _OfEpisode:
    """The requests of one episode, in the controller.

    Attributes:
        failure: the first error of a request.
    """

    def __init__(self, requests: Requests, group: Group) -> None:
        self._requests, self._group = requests, group
        self.failure: Exception | None = None

    async def complete(self, request: GenerationRequest, on_sent: OnSent) -> list[Completion]:
        """See :class:`corerl.contracts.workers.Requests`."""

        def sent(ago: float = 0.0) -> None:
            on_sent(ago)
            self._group.on_begin()

        if self._group.prompt.media:
            request = dataclasses.replace(request, media={**self._group.prompt.media, **request.media})
        try:
            return await self._requests.complete(request, sent)
        except RefusedError:
            raise
        except Exception as error:
            self.failure = self.failure or error
            raise
