"""From rollouts to token rewards: which scorer scores what, failed samples, and the notice when every reward is 0."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.batch.experience import Experience
from corerl.batch.rollouts import Rollouts
from corerl.config.parts import Parts
from corerl.errors import DataError, NameClashError, RunError
from corerl.options import did_you_mean
from corerl.registry import Entry, Registries, Selected
from corerl.registry.reward_managers import RewardResult
from corerl.registry.scorers import Scorer


def select_scorers(data_sources: Iterable[str], parts: Parts, registries: Registries) -> dict[str, Selected[Scorer]]:
    """The scorer of each data source: ``reward.scorer`` where it is set, else the one registered for the source.

    Raises:
        DataError: nobody scores a source; the known ones are named.
        NameClashError: two scorers are registered for it.
    """
    if parts.scorer is not None:
        return dict.fromkeys(data_sources, parts.scorer)
    by_source = _scorers_by_source(registries)
    selected = {}
    for source in data_sources:
        if source not in by_source:
            known = (
                ", ".join(sorted(by_source))
                or "none: no installed plugin registers a scorer (pip install corerl-rewards)"
            )
            raise DataError(
                f"data_source '{source}' has no scorer{did_you_mean(source, by_source)}: set reward.scorer to one of "
                f"'corerl plugins list', or to ./file.py:function; data sources known: {known}"
            )
        entry, *others = by_source[source]
        if others:
            names = " and ".join(f"'{each.name}' of {each.owner}" for each in by_source[source])
            raise NameClashError(f"data_source '{source}' is scored by {names}: choose one with reward.scorer")
        selected[source] = registries.scorers.select(entry.name, "reward.scorer")
    return selected


def _scorers_by_source(registries: Registries) -> dict[str, list[Entry[Scorer]]]:
    by_source: dict[str, list[Entry[Scorer]]] = {}
    for entry in registries.scorers:
        for source in entry.data_sources:
            by_source.setdefault(source, []).append(entry)
    return by_source


def check_results(results: Sequence[RewardResult], count: int) -> None:
    """Whether a reward manager kept its contract.

    Raises:
        RunError: it gave another number of results than there are responses, or a score that is not finite.
    """
    if len(results) != count:
        raise RunError(f"the reward manager gave {len(results)} results for {count} responses")
    for number, result in enumerate(results):
        if result.score is not None and not math.isfinite(result.score):
            raise RunError(
                f"the reward manager gave the score {result.score} for response {number}: a score is finite, or None "
                "with an error"
            )


def score_tensors(results: Sequence[RewardResult]) -> tuple[Tensor, Tensor]:
    """(B,) float32 scores, 0 where there is none, and (B,) bool, which there are."""
    scores = torch.tensor([0.0 if result.score is None else result.score for result in results])
    return scores, torch.tensor([result.score is not None for result in results], dtype=torch.bool)


@dataclass
class Notices:
    """Lines for the reader about the scores of one step.

    Attributes:
        scorers: the scorer of each data source.
        zero_steps: steps so far in which every score was 0.
    """

    scorers: Mapping[str, Selected[Scorer]]
    zero_steps: int = 0

    def errors(self, results: Sequence[RewardResult]) -> str | None:
        """How many samples have no score and the most frequent reason, or None."""
        reasons = Counter(result.error for result in results if result.error is not None)
        if not reasons:
            return None
        reason, count = reasons.most_common(1)[0]
        return (
            f"{reasons.total()} of {len(results)} responses could not be scored and are left out; "
            f"{count} times: {reason}"
        )

    def lone_responses(self, experience: Experience) -> str | None:
        """How many groups have a single response with a score, which leaves them nothing to compare, or None."""
        scored = experience.group_ids[experience.response_mask.any(dim=1)]
        lone = int((torch.bincount(scored) == 1).sum())
        return f"{lone} prompts have one response with a score: its advantage is 0" if lone else None

    def all_zero(self, rollouts: Rollouts, results: Sequence[RewardResult], examples: int = 3) -> str | None:
        """When every score is 0: the data sources, their scorers and what was extracted from some responses.

        The second and later times it is one line.
        """
        if any(result.score != 0 for result in results):
            return None
        self.zero_steps += 1
        if self.zero_steps > 1:
            return f"every reward in this step is 0, for the {self.zero_steps}th time"
        lines = ["every reward in this step is 0"]
        for source, count in Counter(prompt.data_source for prompt in rollouts.prompts).items():
            entry = self.scorers[source].entry if source in self.scorers else None
            by = f"'{entry.name}' of {entry.owner}" if entry else "the environment"
            lines.append(f"  data source '{source}' ({count} responses) is scored by {by}")
        first_of_prompt = {group: row for row, group in reversed(list(enumerate(rollouts.group_ids)))}
        for row in sorted(first_of_prompt.values())[:examples]:
            lines.append(
                f"  extracted {results[row].extracted!r}, ground truth {rollouts.prompts[row].ground_truth!r}, "
                f"from a response that ends in {rollouts.responses[row][-40:]!r}"
            )
        return "\n".join(lines)
