"""The role that plays episodes: processes beside the controller, to which their requests come."""

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence

from corerl.batch.rollouts import Episode, Rollouts
from corerl.contracts.agents import AgentFactory
from corerl.contracts.config import TrainConfig
from corerl.contracts.dispatch import dispatch
from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.contracts.runtimes import Replicas, Role
from corerl.contracts.token_columns import TokenValues
from corerl.contracts.workers import OnSent, Requests
from corerl.data.prompts import Prompt
from corerl.data.tokenizer import load_tokenizer
from corerl.errors import CoreRLError, EngineDeadError, RefusedError, RunError
from corerl.plugins import load_plugins
from corerl.registry import Selected
from corerl.registry.parts import select_agent, select_others
from corerl.rollout.episodes import make_episodes
from corerl.rollout.groups import Group
from corerl.terminal.notices import say

KEY = "rollout.num_workers"

ENDING = 120.0
"""seconds beyond ``rollout.agent_timeout`` in which a cancelled agent ends; then its worker is ended"""


def episode_role(config: TrainConfig, agent: Selected[AgentFactory] | None) -> Role | None:
    """The role of the workers that play episodes; None: the controller plays them."""
    rollout = config.rollout
    if agent is None or not rollout.num_workers:
        return None
    timeout = rollout.agent_timeout + ENDING
    return Role("episodes", KEY, agent.entry.name, distributed=True, workers=rollout.num_workers, timeout=timeout)


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


class _NoRequests:
    """In the place of those of a call."""

    async def complete(self, request: GenerationRequest, on_sent: OnSent) -> list[Completion]:
        raise RunError("no episode is being played")


class EpisodeWorker:
    """Plays episodes, with an agent of its own."""

    def __init__(self, config: TrainConfig) -> None:
        plugins = load_plugins(tuple(config.plugins.load), tuple(config.plugins.disable))
        tokenizer = load_tokenizer(config.model, plugins)
        agent, others = select_agent(config, plugins.registries), select_others(config, plugins.registries)
        episodes = make_episodes(agent, others, config, tokenizer, _NoRequests(), plugins.hook)
        assert episodes is not None
        self._episodes = episodes

    @dispatch("spread")
    async def play(self, orders: Sequence[EpisodeOrder], on_played: OnPlayed, requests: Requests) -> None:
        """Play episodes, one after the other; calls may overlap, all in one event loop.

        Args:
            requests: take the agents' requests.

        Raises:
            RunError: a request failed, or the agent broke its contract.
        """
        episodes = dataclasses.replace(self._episodes, queue=requests)
        for position, order in enumerate(orders):
            on_played(position, Played.of(await episodes.play(order.group(), order.sample), order))

    @dispatch("all")
    def close(self) -> None:
        """Close the agent and the endpoint; the event loop has ended."""
        self._episodes.close()


class WorkerEpisodes:
    """Plays episodes in workers (:class:`corerl.rollout.episodes.Episodes`).

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
