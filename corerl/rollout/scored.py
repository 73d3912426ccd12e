"""Responses with their scores."""

import dataclasses
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from corerl.batch.rollouts import Rollouts, Row
from corerl.contracts.advantage_estimators import Turns
from corerl.contracts.experience import Experience
from corerl.contracts.reward_managers import RewardResult
from corerl.data.prompts import Prompt


@dataclasses.dataclass(frozen=True)
class ScoredRollouts:
    """B responses with their scores.

    Attributes:
        greedy_results: of the greedy response to each row's prompt, one a row; None when nobody needs them.
    """

    rollouts: Rollouts
    results: list[RewardResult]
    greedy_results: list[RewardResult] | None = None

    def __len__(self) -> int:
        return len(self.results)

    def experience(self, width: int = 0) -> Experience:
        """The tensors, each score on its response's last token; a row without a score, or baseline, is masked out.

        Args:
            width: least number of response columns.
        """
        experience = self.rollouts.experience(width)
        scores, scored = score_tensors(self.results)
        if self.greedy_results is not None:
            greedy_scores, has_baseline = score_tensors(self.greedy_results)
            experience.greedy_scores = experience.of_rows(greedy_scores)
            scored &= has_baseline
        experience.response_mask &= experience.of_rows(scored)[:, None]
        experience.rewards = torch.zeros(experience.response_mask.shape)
        last = experience.response_lengths[: len(self)] - 1
        experience.rewards[torch.arange(len(self)), last] = torch.where(scored, scores, 0.0)
        return experience

    def turns(self, width: int) -> Turns | None:
        """The turns of episodes in ``width`` response columns, for an advantage estimator; None without an agent."""
        episodes = self.rollouts.episodes
        if episodes is None:
            return None
        rows = self.rollouts.rows()
        ids = torch.full((len(rows), width), -1, dtype=torch.int32)
        rewards = torch.zeros(len(episodes), max(len(episode.turn_rewards) for episode in episodes))
        for number, row in enumerate(rows):
            ids[number, : len(row.turn_ids)] = torch.tensor(row.turn_ids, dtype=torch.int32)
        for number, episode in enumerate(episodes):
            rewards[number, : len(episode.turn_rewards)] = torch.tensor(episode.turn_rewards)
        return Turns(ids, rewards, observations(rows))

    def components(self) -> dict[str, Tensor]:
        """Name -> (B,) float32: the named parts of the scores, 0 in a row that lacks one."""
        names = dict.fromkeys(name for result in self.results for name in result.components)
        return {name: torch.tensor([result.components.get(name, 0.0) for result in self.results]) for name in names}

    def staleness(self, step: int) -> list[int]:
        """By how many updates the weights that began each written response lag the policy that ``step`` updates."""
        return [step - 1 - version for version in self.rollouts.begun_with()]

    def token_staleness(self, step: int) -> float:
        """As :meth:`staleness`, the mean over the tokens that the policy wrote."""
        lags = tokens = 0
        for row in self.rollouts.rows():
            for start, end, version in row.completion.version_runs():
                count = end - start if row.response_mask is None else sum(row.response_mask[start:end])
                lags += count * (step - 1 - version)
                tokens += count
        return lags / max(1, tokens)

    def without_media(self) -> "ScoredRollouts":
        """The same, without the prompts' images and the like, which engines alone read."""
        prompts = self.rollouts.prompts
        if not any(prompt.media for prompt in prompts):
            return self
        light = {id(prompt): dataclasses.replace(prompt, media={}) for prompt in prompts}
        rollouts = dataclasses.replace(self.rollouts, prompts=[light[id(prompt)] for prompt in prompts])
        return dataclasses.replace(self, rollouts=rollouts)

    def select(self, rows: Sequence[int]) -> "ScoredRollouts":
        """These rows, groups renumbered in the order in which they come."""
        greedy = self.greedy_results
        return ScoredRollouts(
            self.rollouts.select(rows),
            [self.results[row] for row in rows],
            None if greedy is None else [greedy[row] for row in rows],
        )

    @classmethod
    def join(cls, parts: Sequence["ScoredRollouts"]) -> "ScoredRollouts":
        """All rows, one part after the other; the groups of different parts are different."""
        if len(parts) == 1:
            return parts[0]
        greedy = [result for part in parts for result in part.greedy_results or ()]
        return cls(
            Rollouts.join([part.rollouts for part in parts]),
            [result for part in parts for result in part.results],
            greedy if parts[0].greedy_results is not None else None,
        )


@dataclasses.dataclass(frozen=True)
class FinishedGroup:
    """A group that is scored and not trained yet.

    Attributes:
        number: its place in the sampler's order.
        prompt: the data's.
        baseline: its greedy response, if the estimator needs one.
    """

    number: int
    prompt: Prompt
    scored: ScoredRollouts
    baseline: ScoredRollouts | None = None


def observations(rows: Sequence[Row]) -> Tensor:
    """(episodes, turns) int64, as of :class:`corerl.contracts.advantage_estimators.Turns`."""
    numbers, found = dict[tuple[int, ...], int](), dict[tuple[int, int], int]()
    for row in rows:
        read, ids = tuple(row.prompt_ids), torch.tensor(row.turn_ids, dtype=torch.int64)
        cuts = [0, *(ids.diff().nonzero().flatten() + 1).tolist(), len(ids)]
        for start, end in itertools.pairwise(cuts):
            if (turn := row.turn_ids[start]) < 0:
                read = (*read, *row.completion.token_ids[start:end])
            else:
                found[row.episode, turn] = numbers.setdefault(read, len(numbers))
                read = ()
    table = torch.full((1 + max(row.episode for row in rows), 1 + max((turn for _, turn in found), default=0)), -1)
    if found:
        table[tuple(torch.tensor(list(found)).T)] = torch.tensor(list(found.values()))
    return table


def score_tensors(results: Sequence[RewardResult]) -> tuple[Tensor, Tensor]:
    """(B,) float32 scores, 0 where there is none, and (B,) bool, which there are."""
    scores = torch.tensor([0.0 if result.score is None else result.score for result in results])
    return scores, torch.tensor([result.score is not None for result in results], dtype=torch.bool)
