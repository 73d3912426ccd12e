"""The finished groups of a checkpoint that a run can train."""

from collections.abc import Iterable
from dataclasses import dataclass

from corerl.contracts.config import TrainConfig
from corerl.contracts.rollout_backends import SamplingParams
from corerl.rollout.scored import FinishedGroup
from corerl.terminal.notices import say


@dataclass(frozen=True)
class Fitting:
    """Keeps those that this run could have generated, and that are young enough.

    Others were finished with another config (``trainer.resume_with_changes``), or come from another program.

    Attributes:
        sampling: of training responses.
        greedy: of the baseline, if there is one.
        vocabulary: of the model; infinity: unknown.
        plays_episodes: responses are turns of episodes.
    """

    config: TrainConfig
    sampling: SamplingParams
    greedy: SamplingParams | None
    vocabulary: float
    plays_episodes: bool

    def of(self, groups: Iterable[FinishedGroup], step: int) -> dict[int, FinishedGroup]:
        """By number, those that can be trained from ``step`` on; a notice names the number of the others."""
        size, max_staleness = self.config.data.train_batch_size, self.config.trainer.max_staleness
        kept: dict[int, FinishedGroup] = {}
        ordered = sorted(groups, key=_oldest)
        for group in ordered:
            in_time = step + len(kept) // size <= _oldest(group) + 1 + max_staleness
            if in_time and self._fits(group, step - 1):
                kept[group.number] = group
        if left := len(ordered) - len(kept):
            say(
                f"{left} finished groups of the checkpoint do not fit this run, and are generated again: they are too "
                "old, or have another number or length of responses, other parts, or tokens that the model lacks"
            )
        return kept

    def _fits(self, group: FinishedGroup, version: int) -> bool:
        rollouts, baseline, data = group.scored.rollouts, group.baseline, self.config.data
        rows = [*rollouts.rows(), *(baseline.rollouts.rows() if baseline is not None else ())]
        prompts = {own.token_ids for own in rollouts.prompts} - {group.prompt.token_ids}
        longest = max(data.max_prompt_length, len(group.prompt.token_ids)) + self.sampling.max_tokens
        return (
            len(group.scored) == self.sampling.n
            and (0 if baseline is None else len(baseline)) == (0 if self.greedy is None else self.greedy.n)
            and (rollouts.episodes is not None) == self.plays_episodes
            and all(len(row.completion.token_ids) <= self.sampling.max_tokens for row in rows)
            and all(len(row.prompt_ids) + len(row.completion.token_ids) <= longest for row in rows)
            and all(len(prompt) <= data.max_prompt_length for prompt in prompts)
            and all(max(ids) < self.vocabulary for row in rows for ids in (row.prompt_ids, row.completion.token_ids))
            and all(begun <= version for row in rows for *_, begun in row.completion.version_runs())
        )


def _oldest(group: FinishedGroup) -> int:
    """The version of the weights that began it."""
    return min(group.scored.rollouts.begun_with(), default=0)
