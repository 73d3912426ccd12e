"""Episodes: an agent plays one, with the policy as its model, and its requests become rows."""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, Protocol

import pluggy

from corerl.batch.rollouts import Rollouts
from corerl.contracts.agents import Agent, AgentFactory, ClosingAgent
from corerl.contracts.config import TrainConfig
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.contracts.workers import Requests
from corerl.registry import Selected
from corerl.rollout.agents import FAILURES, make_agent, result_of
from corerl.rollout.groups import Group
from corerl.rollout.recorder import Recorder, Services
from corerl.rollout.rows import rollouts_of


class Episodes(Protocol):
    """Plays the episodes of groups."""

    async def play(self, group: Group, sample: int) -> Rollouts:
        """Episode ``sample`` of a group, as one response of at most ``sampling.max_tokens``.

        Raises:
            RunError: a request failed, or the agent broke its contract.
        """
        ...

    def close(self) -> None: ...


@dataclasses.dataclass
class AgentEpisodes:
    """Plays episodes in this process.

    Attributes:
        max_prompt_length: ``data.max_prompt_length``.
        timeout: deadline of an episode, in seconds.
    """

    queue: Requests
    tokenizer: ChatTokenizer
    agent: Agent
    services: Services
    max_prompt_length: int
    timeout: float

    async def play(self, group: Group, sample: int) -> Rollouts:
        """See :class:`Episodes`."""
        start = time.perf_counter()
        recorder = Recorder(self.queue, self.tokenizer, group, sample, self.max_prompt_length, self.services)
        try:
            result = await result_of(self.agent, group, recorder, self.timeout)
        finally:
            recorder.end()
        if recorder.failure is not None:
            raise recorder.failure
        if recorder.refusal is not None and (result.error is not None or not recorder.nodes):
            result = dataclasses.replace(result, error=f"{FAILURES['refused']}: {recorder.refusal}")
        rollouts = rollouts_of(recorder, result)
        for episode in rollouts.episodes or ():
            episode.seconds["played"] = time.perf_counter() - start
        return rollouts

    def close(self) -> None:
        """Close the agent and the endpoint."""
        if isinstance(self.agent, ClosingAgent):
            self.agent.close()
        if self.services.endpoint is not None:
            self.services.endpoint.close()


def make_episodes(
    selected: Selected[AgentFactory] | None,
    others: Mapping[str, Selected[Any]],
    config: TrainConfig,
    tokenizer: ChatTokenizer,
    queue: Requests,
    hook: pluggy.HookRelay,
) -> AgentEpisodes | None:
    """The episodes of the config's agent; None if it has none.

    Args:
        others: key -> part of a plugin's kind, for :attr:`corerl.contracts.agents.AgentContext.part`.
    """
    agent = make_agent(selected, others, config, tokenizer)
    if agent is None:
        return None
    services = Services(
        hook.make_chats(config=config, tokenizer=tokenizer), hook.make_endpoint(config=config, tokenizer=tokenizer)
    )
    limits = config.data.max_prompt_length, config.rollout.agent_timeout
    return AgentEpisodes(queue, tokenizer, agent, services, *limits)
