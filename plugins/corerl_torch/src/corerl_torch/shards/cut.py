"""The division of a step into shards of whole groups."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from corerl.contracts.experience import RowNumbers
from corerl.contracts.losses import Measure, add_means
from corerl.rollout.scored import ScoredRollouts


@dataclass(frozen=True)
class Part:
    """The place of a shard's rows in the step.

    Attributes:
        number: of the shard.
        responses: of the step.
        width: response columns of all shards: sums over a row do not depend on the shard.
        has_branches: some episode of the step has branches, in this shard or another.
        episodes: (E,) int64, of each response of the shard its number in the step.
        groups: (G,) int64, of each group of the shard its number in the step.
    """

    number: int
    responses: int
    width: int
    has_branches: bool
    episodes: Tensor
    groups: Tensor


@dataclass(frozen=True)
class Cut:
    """The shards of a step with B rows.

    Attributes:
        parts: of each shard.
        rows: of each shard, its rows' numbers in the step, in the order of the shard.
        group_ids, episode_ids: (B,) int64, those of the step; None: no episode has branches.
    """

    parts: list[Part]
    rows: list[Tensor]
    group_ids: Tensor
    episode_ids: Tensor | None

    @classmethod
    def of(cls, scored: ScoredRollouts, most: int) -> "Cut":
        """At most so many shards, each of consecutive groups, with about equal numbers of tokens."""
        rollouts = scored.rollouts
        branches = [len(each.branches) for each in rollouts.episodes] if rollouts.episodes else [0] * len(scored)
        tokens, width = [0] * len(scored), 0
        for row in rollouts.rows():
            response_tokens = len(row.completion.token_ids)
            tokens[row.episode] += len(row.prompt_ids) + response_tokens
            width = max(width, response_tokens)
        numbers = torch.tensor(rollouts.group_ids)
        episodes = torch.arange(len(scored)).repeat_interleave(torch.tensor(branches))
        has_branches = bool(len(episodes))
        episodes = torch.cat([torch.arange(len(scored)), episodes])
        parts = list[Part]()
        for responses in divided(rollouts.group_ids, tokens, most):
            groups = torch.tensor(list(dict.fromkeys(rollouts.group_ids[response] for response in responses)))
            part = Part(len(parts), len(scored), width, has_branches, torch.tensor(responses), groups)
            parts.append(part)
        if len(parts) == 1:  # its groups are not renumbered
            parts[0] = replace(parts[0], groups=torch.arange(int(numbers.max()) + 1))
        rows = rows_of([part.episodes for part in parts], episodes[len(scored) :])
        return cls(parts, rows, numbers[episodes], episodes if has_branches else None)

    def scored(self, whole: ScoredRollouts) -> list[ScoredRollouts]:
        """The responses of each shard."""
        if len(self.parts) == 1:
            return [whole]
        return [whole.select(part.episodes.tolist()) for part in self.parts]

    def first(self, responses: int) -> tuple[list[int], list[Tensor]]:
        """Of each shard the number of its responses among the first of the step, and the numbers of their rows."""
        chosen = [part.episodes[part.episodes < responses] for part in self.parts]
        branches = self.group_ids[:0] if self.episode_ids is None else self.episode_ids[self.parts[0].responses :]
        return [len(each) for each in chosen], rows_of(chosen, branches[branches < responses])

    def numbers(self, parts: Sequence[RowNumbers]) -> RowNumbers:
        """The numbers of all rows, from those of each shard."""

        def whole(name: str) -> Tensor:
            values = [getattr(part, name) for part in parts]
            joined: Tensor = values[0].new_empty(len(self.group_ids))
            for rows, own in zip(self.rows, values, strict=True):
                joined[rows] = own
            return joined

        lengths, response_lengths = whole("lengths"), whole("response_lengths")
        moving = whole("trained"), whole("has_advantage")
        return RowNumbers(lengths, response_lengths, self.group_ids, *moving, self.episode_ids)

    def shares(self, rows: Sequence[int]) -> list[list[int]]:
        """Of each shard, those of its own rows that are among these rows of the step."""
        chosen = torch.zeros(len(self.group_ids), dtype=torch.bool)
        chosen[list(rows)] = True
        return [chosen[own].nonzero().squeeze(1).tolist() for own in self.rows]


def divided(group_ids: Sequence[int], tokens: Sequence[int], most: int) -> list[list[int]]:
    """The responses of each part: consecutive groups, in the order in which they come, of about equal tokens.

    Args:
        group_ids: of each response.
        tokens: of each response.
        most: number of parts; fewer if there are fewer groups, or some are large.
    """
    groups: dict[int, list[int]] = {}
    for response, group in enumerate(group_ids):
        groups.setdefault(group, []).append(response)
    sizes = [sum(tokens[response] for response in own) for own in groups.values()]
    total, middles = sum(sizes), [end - size / 2 for end, size in zip(itertools.accumulate(sizes), sizes, strict=True)]
    places = [min(most - 1, int(most * middle / total)) if total else 0 for middle in middles]
    parts: dict[int, list[int]] = {}
    for place, own in zip(places, groups.values(), strict=True):
        parts.setdefault(place, []).extend(own)
    return [sorted(own) for own in parts.values()]


def rows_of(parts: Sequence[Tensor], branches: Tensor) -> list[Tensor]:
    """Of each part, given by its responses, the numbers of its rows: the responses, behind them their branches.

    Args:
        branches: (N,) int64, the response of each branch; their rows are behind those of all responses.
    """
    count = sum(len(own) for own in parts)
    return [torch.cat([own, count + torch.isin(branches, own).nonzero().squeeze(1)]) for own in parts]


def add_measures(
    parts: Sequence[Mapping[str, Measure | float]],
) -> tuple[dict[str, Measure], dict[str, float]]:
    """The measures of all parts together, and the floats, which do not add up."""
    sums: dict[str, Measure] = {}
    floats: dict[str, float] = {}
    for part in parts:
        floats |= {name: float(each) for name, each in part.items() if isinstance(each, int | float)}
        add_means(sums, {name: each for name, each in part.items() if not isinstance(each, int | float)})
    return sums, floats
