"""Rollouts: what came back from the rollout backend, one entry a response."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch

from corerl.contracts.experience import Experience, collate
from corerl.contracts.reward_managers import RewardRequest
from corerl.contracts.rollout_backends import Completion
from corerl.contracts.token_columns import TokenColumn
from corerl.data.prompts import Prompt


@dataclass(frozen=True)
class RequestRecord:
    """One request of an episode.

    Attributes:
        number: in the order of asking.
        parent: the number of the request that it continues; -1: none.
        read, sampled: tokens.
        asked, sent, answered: seconds since the episode began.
    """

    number: int
    parent: int
    read: int
    sampled: int
    asked: float
    sent: float
    answered: float
    finish_reason: str


@dataclass(frozen=True)
class Branch:
    """Requests of an episode that leave its main path, as a further row.

    Attributes:
        prompt_ids: all tokens before the first one that is trained in this row.
        completion: of the tokens from there on.
        response_mask, turn_ids: as of :class:`Episode`.
    """

    prompt_ids: tuple[int, ...]
    completion: Completion
    response_mask: list[bool]
    turn_ids: list[int]


@dataclass(frozen=True)
class Episode:
    """How an agent came to a response. The response is the main path, whose last request is the latest of the episode.

    Attributes:
        response_mask: for each of its tokens, whether the policy generated it.
        messages: the turns after the prompt.
        turns: of the policy.
        reward, turn_rewards, components, metrics, artifacts: as of :class:`corerl.contracts.agents.AgentResult`.
        error: why the episode takes no part in training, or None.
        turn_ids: for each token the number of the request that sampled it; -1: the policy read the token.
        branches: the other paths; each sampled token is trained in one row.
        requests: all that were answered.
        seconds: ``began`` (time since the epoch), and how long the episode was ``played`` and ``scored``.
    """

    response_mask: list[bool]
    messages: list[dict[str, Any]] = field(default_factory=list)
    turns: int = 1
    reward: float = 0.0
    components: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    turn_rewards: list[float] = field(default_factory=list)
    turn_ids: list[int] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)

    @property
    def total_reward(self) -> float:
        """Of the turns and the end together."""
        total = 0.0
        for reward in self.turn_rewards:
            total += reward
        return total + self.reward


@dataclass(frozen=True)
class Row:
    """A row of the batch: a response, or a branch of response ``episode``."""

    episode: int
    prompt_ids: Sequence[int]
    completion: Completion
    response_mask: Sequence[bool] | None
    turn_ids: Sequence[int]


@dataclass(frozen=True)
class Rollouts:
    """B responses; ``group_ids[i]`` is the position of response i's prompt in the generated batch.

    Of a response in several turns, ``completions`` has all tokens of the main path and ``responses`` what the policy
    wrote in it.

    Attributes:
        seconds: of a response without an episode: ``began`` (time since the epoch) and, since then, ``sent``,
            ``answered`` and ``scored``; empty if nobody measured them.
    """

    prompts: list[Prompt]
    completions: list[Completion]
    responses: list[str]
    group_ids: list[int]
    episodes: list[Episode] | None = None
    seconds: list[dict[str, float]] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def collect(
        cls,
        prompts: Sequence[Prompt],
        outputs: Sequence[Sequence[Completion]],
        decode: Callable[[Sequence[Sequence[int]]], list[str]],
    ) -> "Rollouts":
        """Flatten the completions of a batch of prompts; ``decode`` turns token ids into text, equal ones once.

        A response begins with the tag of reasoning that its prompt opens.
        """
        group_ids = [group for group, samples in enumerate(outputs) for _ in samples]
        completions = [completion for samples in outputs for completion in samples]
        token_ids = [tuple(completion.token_ids) for completion in completions]
        different = list(dict.fromkeys(token_ids))
        texts = dict(zip(different, decode(different), strict=True))
        owners = [prompts[group] for group in group_ids]
        responses = [owner.opening + texts[ids] for owner, ids in zip(owners, token_ids, strict=True)]
        return cls(owners, completions, responses, group_ids)

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
            [self.seconds[row] for row in rows] if self.seconds else [],
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
            [seconds for part in parts for seconds in part.seconds or [{}] * len(part)]
            if any(part.seconds for part in parts)
            else [],
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

    def rows(self) -> list[Row]:
        """The responses, and behind them the branches of all."""
        episodes = self.episodes
        own = enumerate(zip(self.prompts, self.completions, strict=True))
        if episodes is None:
            return [Row(number, prompt.token_ids, each, None, ()) for number, (prompt, each) in own]
        rows = [
            Row(number, prompt.token_ids, each, episodes[number].response_mask, episodes[number].turn_ids)
            for number, (prompt, each) in own
        ]
        return rows + [
            Row(number, branch.prompt_ids, branch.completion, branch.response_mask, branch.turn_ids)
            for number, episode in enumerate(episodes)
            for branch in episode.branches
        ]

    def begun_with(self) -> list[int]:
        """Of each response with a token of the policy, the oldest version of the weights that began one of its rows."""
        if self.episodes is None:
            return [completion.weight_version for completion in self.completions]
        begun = []
        for completion, episode in zip(self.completions, self.episodes, strict=True):
            main = [completion] if any(episode.response_mask) else []
            if rows := [*main, *(branch.completion for branch in episode.branches)]:
                begun.append(min(row.weight_version for row in rows))
        return begun

    def experience(self, width: int = 0) -> Experience:
        """The tensors of the rows (:meth:`rows`), with at least ``width`` response columns."""
        rows = self.rows()
        experience = collate(
            [row.prompt_ids for row in rows],
            [row.completion.token_ids for row in rows],
            [self.group_ids[row.episode] for row in rows],
            masks=None if self.episodes is None else [row.response_mask or () for row in rows],
            log_probs=[row.completion.log_probs for row in rows],
            width=width,
        )
        begun = torch.tensor([row.completion.weight_version for row in rows], dtype=torch.int32)
        places = torch.arange(experience.response_mask.shape[1])
        versions = torch.where(places < experience.response_lengths[:, None], begun[:, None], 0)
        for number, row in enumerate(rows):
            for start, end, version in row.completion.version_runs()[1:] if row.completion.updates else ():
                versions[number, start:end] = version
        experience.weight_versions = versions
        for name in dict.fromkeys(name for row in rows for name in row.completion.columns):
            recorded = [row.completion.columns.get(name) for row in rows]
            experience.columns[name] = TokenColumn.collate(recorded, experience.lengths.tolist())
        if len(rows) > len(self):
            experience.episode_ids = torch.tensor([row.episode for row in rows])
        return experience
