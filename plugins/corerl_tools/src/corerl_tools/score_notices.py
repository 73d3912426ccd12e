"""Notices about the scores of a step, and about errors of an evaluation."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from corerl.batch.rollouts import Rollouts
from corerl.contracts.experience import RowNumbers
from corerl.contracts.reward_managers import RewardResult, error_kind
from corerl.contracts.scorers import Scorer
from corerl.registry import Selected
from corerl.rollout.scoring import scorers_or_reasons
from corerl.terminal.notices import Recurring, say
from corerl.trainer.run import Run


@dataclass
class Notices:
    """Lines for the reader about the scores of one step.

    Attributes:
        scorers: data sources -> the scorer of each; those that the environment scores have none.
        of_groups: the advantage estimator compares the responses of a group.
        recurring: prints the notices.
    """

    scorers: Callable[[Iterable[str]], Mapping[str, Selected[Scorer]]]
    of_groups: bool = False
    recurring: Recurring = field(default_factory=Recurring)

    def print(self, step: int, rollouts: Rollouts, results: Sequence[RewardResult], rows: RowNumbers) -> None:
        """Print the notices of a step."""
        self.print_errors(f"step {step}", results)
        if equal := self.all_equal(rollouts, results):
            say(f"step {step}: {equal}")
        if self.of_groups and (lone := self.lone_responses(rows)):
            self.recurring("lone", f"step {step}: {lone}")

    def print_errors(self, where: str, results: Sequence[RewardResult]) -> None:
        """Print the notice of errors, if there are any; errors of another kind are another notice."""
        if notice := self.errors(results):
            kinds = Counter(error_kind(result) for result in results if result.error is not None)
            self.recurring(f"errors: {kinds.most_common(1)[0][0]}", f"{where}: {notice}")

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

    def lone_responses(self, rows: RowNumbers) -> str | None:
        """How many groups have a single response with a score, which leaves them nothing to compare, or None."""
        scored = rows.group_ids[rows.trained > 0]
        lone = int((scored.bincount() == 1).sum())
        return f"{lone} prompts have one response with a score: its advantage is 0" if lone else None

    def all_equal(self, rollouts: Rollouts, results: Sequence[RewardResult], examples: int = 3) -> str | None:
        """When every score is the same: the data sources, their scorers and what was extracted from some responses.

        Later steps with that score have one line, or none (:class:`corerl.terminal.Recurring`). A single response has
        nothing to be equal to.
        """
        scores = {result.score for result in results}
        score = results[0].score
        if len(scores) > 1 or score is None or (len(results) == 1 and score != 0):
            return None
        count = self.recurring.due(f"equal: {score:g}")
        if count != 1:
            return f"every reward in this step is {score:g}, as in {count} steps so far" if count else None
        lines = [f"every reward in this step is {score:g}"]
        sources = Counter(prompt.data_source for prompt in rollouts.prompts)
        scorers = self.scorers(sources)
        for source, count in sources.items():
            entry = scorers[source].entry if source in scorers else None
            by = f"'{entry.name}' of {entry.owner}" if entry else "the agent"
            lines.append(f"  data source '{source}' ({count} responses) is scored by {by}")
        first_of_prompt = {group: row for row, group in reversed(list(enumerate(rollouts.group_ids)))}
        for row in sorted(first_of_prompt.values())[:examples]:
            lines.append(
                f"  extracted {results[row].extracted!r}, ground truth {rollouts.prompts[row].ground_truth!r}, "
                f"from a response that ends in {rollouts.responses[row][-40:]!r}"
            )
        return "\n".join(lines)


_NOTICES: dict[Path, Notices] = {}
"""of each run of this process, by its folder"""


def of_run(run: Run) -> Notices:
    """The notices of a run, which count its steps."""

    def scorers(sources: Iterable[str]) -> Mapping[str, Selected[Scorer]]:
        if run.parts.agent is not None and not run.config.rollout.multi_turn.score_response:
            return {}
        return scorers_or_reasons(sources, run.parts, run.plugins.registries)[0]

    if run.folder not in _NOTICES:
        _NOTICES[run.folder] = Notices(scorers, of_groups="groups" in run.parts.adv_estimator.entry.needs)
    return _NOTICES[run.folder]
