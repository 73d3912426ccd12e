"""Rollouts: what came back from the rollout backend, one entry a response."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch

from corerl.contracts.experience import Experience, collate
from corerl.contracts.reward_managers import RewardRequest
from corerl.contracts.rollout_backends import Completion
from corerl.data.prompts import Prompt


@dataclass(frozen=True)
class Branch:
    """A further row of an episode: a path of requests that leaves the main one."""

    prompt_ids: tuple[int, ...]
    completion: Completion
    response_mask: list[bool]
    turn_ids: list[int]


@dataclass(frozen=True)
class RequestRecord:
    """One request of an episode; times are seconds since the episode began."""

    parent: int
    read: int
    sampled: int
    asked: float
    sent: float
    answered: float
    finish_reason: str


@dataclass(frozen=True)
class Episode:
    """How an agent came to a response.

    Attributes:
        response_mask: for each of its tokens, whether the policy generated it.
        messages: the turns after the prompt.
        turns: of the policy.
        reward, components, metrics: as of :class:`corerl.contracts.agents.AgentResult`.
        error: why the episode takes no part in training, or None.
    """

    response_mask: list[bool]
    messages: list[dict[str, Any]] = field(default_factory=list)
    turns: int = 1
    reward: float = 0.0
    components: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    turn_ids: list[int] = field(default_factory=list)
    turn_rewards: list[float] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rollouts:
    """B responses; ``group_ids[i]`` is the position of response i's prompt in the generated batch.

    Of a response in several turns, ``completions`` has all tokens and ``responses`` what the policy wrote.
    """

    prompts: list[Prompt]
    completions: list[Completion]
    responses: list[str]
    group_ids: list[int]
    episodes: list[Episode] | None = None

    @classmethod
    def collect(
        cls,
        prompts: Sequence[Prompt],
        outputs: Sequence[Sequence[Completion]],
        decode: Callable[[Sequence[Sequence[int]]], list[str]],
    ) -> "Rollouts":
        """Flatten the completions of a batch of prompts; ``decode`` turns token ids into text, equal ones once."""
        group_ids = [group for group, samples in enumerate(outputs) for _ in samples]
        completions = [completion for samples in outputs for completion in samples]
        token_ids = [tuple(completion.token_ids) for completion in completions]
        different = list(dict.fromkeys(token_ids))
        texts = dict(zip(different, decode(different), strict=True))
        return cls([prompts[group] for group in group_ids], completions, [texts[ids] for ids in token_ids], group_ids)

    def __len__(self) -> int:
        return len(self.completions)

    @property
    def groups(self) -> int:
        """How many prompts."""
        return len(set(self.group_ids))

    def select(self, rows: Sequence[int]) -> "Rollouts":
        """These rows, groups renumbered in the order in which they come."""
        numbers = {group: number for number, group in enumerate(dict.fromkeys(self.group_ids[row] for row in rows))}
        return Rollouts(
            [self.prompts[row] for row in rows],
            [self.completions[row] for row in rows],
            [self.responses[row] for row in rows],
            [numbers[self.group_ids[row]] for row in rows],
            None if self.episodes is None else [self.episodes[row] for row in rows],
        )

    @classmethod
    def join(cls, parts: "Sequence[Rollouts]") -> "Rollouts":
        """All rows, one part after the other; the groups of different parts are different."""
        starts = accumulate((part.groups for part in parts), initial=0)
        return cls(
            [prompt for part in parts for prompt in part.prompts],
            [completion for part in parts for completion in part.completions],
            [response for part in parts for response in part.responses],
            [start + group for start, part in zip(starts, parts, strict=False) for group in part.group_ids],
            [episode for part in parts for episode in part.episodes or ()] or None,
        )

    @property
    def truncated(self) -> list[bool]:
        """Which responses ended by their length, not by a stop token."""
        return [completion.finish_reason == "length" for completion in self.completions]

    def reward_requests(self, max_response_length: int) -> list[RewardRequest]:
        """What the reward manager is asked."""
        return [
            RewardRequest(
                response=response,
                ground_truth=prompt.ground_truth,
                data_source=prompt.data_source,
                extra_info=prompt.extra_info,
                response_length=len(completion.token_ids),
                max_response_length=max_response_length,
                truncated=truncated,
                prompt=prompt.messages,
            )
            for prompt, completion, response, truncated in zip(
                self.prompts, self.completions, self.responses, self.truncated, strict=True
            )
        ]

    def experience(self) -> Experience:
        """The tensors of these rollouts."""
        experience = collate(
            [prompt.token_ids for prompt in self.prompts],
            [completion.token_ids for completion in self.completions],
            self.group_ids,
            masks=None if self.episodes is None else [episode.response_mask for episode in self.episodes],
            log_probs=[completion.log_probs for completion in self.completions],
        )
        begun = torch.tensor([completion.weight_version for completion in self.completions], dtype=torch.int32)
        places = torch.arange(experience.response_mask.shape[1])
        versions = torch.where(places < experience.response_lengths[:, None], begun[:, None], 0)
        for row, completion in enumerate(self.completions):
            for start, end, version in completion.version_runs()[1:] if completion.updates else ():
                versions[row, start:end] = version
        experience.weight_versions = versions
        return experience
