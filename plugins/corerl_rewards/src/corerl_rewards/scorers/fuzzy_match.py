"""Scorer of answers in words with partial credit: the similarity to the nearest accepted answer.

similarity(a, b) = 2 · LCS(a, b) / (|a| + |b|), where LCS is the length of the longest common subsequence of characters
(rapidfuzz's ``ratio``, Levenshtein's without substitutions). Case, punctuation and articles are ignored, as in
``exact_match``. Unlike difflib's ratio it is symmetric and always fast: one integer holds many characters of the
subsequence in its bits (Hyyrö 2004, "Bit-parallel LCS-length computation revisited").

``method: f1`` is SQuAD's F1 of the shared words (Rajpurkar et al., 2016, arXiv 1606.05250).

==================  ================  =======================  ====
response            ground truth      similarity               F1
==================  ================  =======================  ====
``colour``          ``color``         2 · 5 / 11 = 0.909       0
``red car``         ``red bicycle``   2 · 5 / 18 = 0.556       0.5
==================  ================  =======================  ====
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from corerl_rewards.answers import answer_part
from corerl_rewards.options import FuzzyMatchOptions
from corerl_rewards.scorers.texts import accepted, given_answer, plain

_DEFAULT = FuzzyMatchOptions()


def fuzzy_match(
    response: str,
    ground_truth: Any,
    data_source: str,
    extra_info: Mapping[str, Any],
    options: FuzzyMatchOptions = _DEFAULT,
) -> Mapping[str, Any]:
    """Between 0.0 and 1.0, the similarity of the given answer to the nearest accepted one; 0.0 below the threshold.

    Values of ``ground_truth`` and errors are as for ``exact_match``.
    """
    answer = given_answer(answer_part(response, options))
    compare = similarity if options.method == "characters" else f1
    best = max(compare(plain(answer), plain(truth)) for truth in accepted(ground_truth))
    return {"score": best if best >= options.threshold else 0.0, "extracted": answer}


def similarity(one: str, other: str) -> float:
    """2 · LCS / (sum of the lengths); 1.0 for two empty texts."""
    total = len(one) + len(other)
    return 2 * common_length(one, other) / total if total else 1.0


def common_length(one: str, other: str) -> int:
    """The length of the longest common subsequence."""
    short, long = sorted((one, other), key=len)
    places: dict[str, int] = {}
    for index, character in enumerate(short):
        places[character] = places.get(character, 0) | 1 << index
    full = (1 << len(short)) - 1
    row = full
    for character in long:
        matched = row & places.get(character, 0)
        row = ((row + matched) | (row - matched)) & full
    return len(short) - row.bit_count()


def f1(one: str, other: str) -> float:
    """The harmonic mean of precision and recall over words."""
    words, others = one.split(), other.split()
    shared = (Counter(words) & Counter(others)).total()
    return 2 * shared / (len(words) + len(others)) if words or others else 1.0
