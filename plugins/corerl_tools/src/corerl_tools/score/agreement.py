"""Agreement of a scorer with labels from people or from another scorer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from corerl.contracts.options import did_you_mean
from corerl.contracts.reward_managers import RewardResult
from corerl.errors import DataError
from corerl_tools.evaluation.files import Response

_WORDS = {
    **dict.fromkeys(("true", "correct", "right", "yes", "1"), True),
    **dict.fromkeys(("false", "incorrect", "wrong", "no", "0"), False),
}


@dataclass(frozen=True)
class Agreement:
    """Counts of label against verdict, and the rows on which they differ.

    Attributes:
        both_correct, both_wrong: rows on which both agree.
        only_label, only_scorer: rows that only the label, or only the scorer, calls correct.
        left_out: rows without a label or without a score.
    """

    both_correct: int
    both_wrong: int
    only_label: tuple[int, ...]
    only_scorer: tuple[int, ...]
    left_out: int

    @property
    def compared(self) -> int:
        return self.both_correct + self.both_wrong + len(self.only_label) + len(self.only_scorer)

    @property
    def share(self) -> float:
        """The share of compared rows on which both agree; NaN if no row is compared."""
        return (self.both_correct + self.both_wrong) / self.compared if self.compared else math.nan

    @property
    def kappa(self) -> float:
        """Cohen's kappa (1960): agreement beyond chance; NaN if chance alone gives full agreement."""
        if not self.compared:
            return math.nan
        label = (self.both_correct + len(self.only_label)) / self.compared
        scorer = (self.both_correct + len(self.only_scorer)) / self.compared
        chance = label * scorer + (1 - label) * (1 - scorer)
        return math.nan if chance == 1 else (self.share - chance) / (1 - chance)

    def table(self) -> list[tuple[str, str, str]]:
        """The confusion table, with headings first."""
        return [
            ("", "scorer: correct", "scorer: wrong"),
            ("label: correct", str(self.both_correct), str(len(self.only_label))),
            ("label: wrong", str(len(self.only_scorer)), str(self.both_wrong)),
        ]


def compare(
    responses: Sequence[Response], results: Sequence[RewardResult], column: str, correct_from: float = 1.0
) -> Agreement:
    """Compare verdicts with a column of labels: true or false, a number, or a word such as ``correct``.

    Args:
        correct_from: lowest score, or lowest numeric label, of a correct response.

    Raises:
        DataError: no row has the column, or a value is not a label.
    """
    counts = {(True, True): 0, (False, False): 0}
    only_label: list[int] = []
    only_scorer: list[int] = []
    left_out = 0
    if not any(column in response.row for response in responses):
        known = list(dict.fromkeys(name for response in responses for name in response.row))
        raise DataError(f"no column '{column}'{did_you_mean(column, known)}; the columns are {', '.join(known)}")
    for number, (response, result) in enumerate(zip(responses, results, strict=True)):
        label = _label(response, column, correct_from)
        if label is None or result.score is None:
            left_out += 1
            continue
        verdict = result.score >= correct_from
        if label == verdict:
            counts[label, verdict] += 1
        else:
            (only_label if label else only_scorer).append(number)
    return Agreement(counts[True, True], counts[False, False], tuple(only_label), tuple(only_scorer), left_out)


def example(response: Response, result: RewardResult, end: int = 60) -> str:
    """One line about a row on which label and scorer differ."""
    return (
        f"{response.location}: extracted {result.extracted!r}, ground truth {response.ground_truth!r}, "
        f"from a response that ends in {response.text[-end:]!r}"
    )


def _label(response: Response, column: str, correct_from: float) -> bool | None:
    value: Any = response.row.get(column)
    if isinstance(value, str) and value.strip().lower() in _WORDS:
        return _WORDS[value.strip().lower()]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and not math.isnan(value):
        return value >= correct_from
    raise DataError(f"{response.location}, column '{column}': {value!r:.40} is no label: use true or false")
