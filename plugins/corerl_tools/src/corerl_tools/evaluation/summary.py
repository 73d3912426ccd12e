"""Statistics of scored responses by data source: ``mean@n``, ``pass@k``, ``maj@k``, ``best@k``, ``worst@k``."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from corerl_tools.evaluation.estimators import Array, best_at_k, bootstrap_error, majority_at_k, pass_at_k
from corerl_tools.evaluation.votes import vote

_CORRECT = object()
"""the vote of every correct response"""


class Sample(NamedTuple):
    """One response; equal ``prompt``: responses to one prompt; ``score`` is None if scoring failed.

    Equal ``extracted`` are one vote of ``maj@k``, as are numbers of one value, and all correct responses to a prompt.
    """

    data_source: str
    prompt: Hashable
    score: float | None
    extracted: str | None = None


class Estimate(NamedTuple):
    """The mean over ``prompts`` with enough scored responses, and its standard error (NaN for one prompt)."""

    value: float
    error: float
    prompts: int


@dataclass(frozen=True)
class Summary:
    """The statistics of one data source.

    Attributes:
        n: responses per prompt; the largest number, if prompts differ.
        unscored: responses without a score; they are ignored.
        estimates: name -> estimate: ``mean@n``, then ``pass@k``, ``maj@k``, ``best@k``, ``worst@k`` of each k.
    """

    data_source: str
    prompts: int
    responses: int
    unscored: int
    n: int
    estimates: Mapping[str, Estimate]


def powers_up_to(n: int) -> list[int]:
    """1, 2, 4, … and n.

    >>> powers_up_to(6)
    [1, 2, 4, 6]
    """
    return sorted({n, *(1 << power for power in range(n.bit_length()))})


def summarise(samples: Iterable[Sample], correct_from: float = 1.0, ks: Sequence[int] | None = None) -> list[Summary]:
    """One summary for each data source, in the order of their first samples.

    Args:
        correct_from: lowest score of a correct response, for ``pass@k``.
        ks: None: 1, 2, 4, … and n. A k for which no prompt has enough scored responses is left out.
    """
    by_source: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_source[sample.data_source].append(sample)
    return [_of_source(source, of_source, correct_from, ks) for source, of_source in by_source.items()]


def _of_source(source: str, samples: Sequence[Sample], correct_from: float, ks: Sequence[int] | None) -> Summary:
    by_prompt: dict[Hashable, list[Sample]] = {sample.prompt: [] for sample in samples}
    for sample in samples:
        if sample.score is not None:
            by_prompt[sample.prompt].append(sample)
    groups = _Groups([group for group in by_prompt.values() if group], correct_from)
    n = max(Counter(sample.prompt for sample in samples).values())
    estimates = {f"mean@{n}": groups.mean()} if groups.scores else {}
    for k in powers_up_to(n) if ks is None else ks:
        if any(scores.shape[1] >= k for scores in groups.scores):
            estimates |= {f"{name}@{k}": estimate for name, estimate in groups.at_k(k).items()}
    unscored = sum(sample.score is None for sample in samples)
    return Summary(source, len(by_prompt), len(samples), unscored, n, estimates)


class _Groups:
    """The scored responses of each prompt.

    Attributes:
        scores: (prompts, responses) float64, one array for each number of responses.
        answers: as ``scores``; None if no scorer extracts answers.
    """

    def __init__(self, groups: Sequence[Sequence[Sample]], correct_from: float) -> None:
        by_size: dict[int, list[Sequence[Sample]]] = defaultdict(list)
        for group in groups:
            by_size[len(group)].append(group)
        self.scores = [np.array([[sample.score for sample in group] for group in each]) for each in by_size.values()]
        self._correct_from = correct_from
        self.answers: list[list[list[Hashable]]] | None = None
        if any(sample.extracted is not None for group in groups for sample in group):
            self.answers = [[list(map(self._vote, group)) for group in each] for each in by_size.values()]

    def _vote(self, sample: Sample) -> Hashable:
        is_correct = sample.score is not None and sample.score >= self._correct_from
        return _CORRECT if is_correct and sample.extracted is not None else vote(sample.extracted)

    def mean(self) -> Estimate:
        return _estimate([scores.mean(axis=1) for scores in self.scores])

    def at_k(self, k: int) -> dict[str, Estimate]:
        """Estimates by name of the metric; prompts with fewer than k responses are ignored."""
        enough = [scores for scores in self.scores if scores.shape[1] >= k]
        found = {"pass": _estimate([pass_at_k(scores >= self._correct_from, k) for scores in enough])}
        if self.answers is not None:
            pairs = [pair for pair in zip(self.scores, self.answers, strict=True) if pair[0].shape[1] >= k]
            votes = [[majority_at_k(*row, k) for row in zip(*pair, strict=True)] for pair in pairs]
            found["maj"] = _estimate([np.array(each) for each in votes])
        found["best"] = _estimate([best_at_k(scores, k) for scores in enough])
        found["worst"] = _estimate([-best_at_k(-scores, k) for scores in enough])
        return found


def _estimate(values: Sequence[Array]) -> Estimate:
    together = np.concatenate(values)
    return Estimate(float(together.mean()), bootstrap_error(together), len(together))
