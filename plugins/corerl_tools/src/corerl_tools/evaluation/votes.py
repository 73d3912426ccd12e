r"""Votes for ``maj@k``: answers that the grader calls equal are one answer.

The correct responses of a prompt are one answer: the grader found each equal to the ground truth. Numbers are compared
by their value. Two other answers are one if the grader accepts a response with the first answer for a ground truth that
is the second answer.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

from corerl.contracts.reward_managers import RewardResult
from corerl_tools.evaluation.files import Response

Regrade = Callable[[Sequence[Response]], Sequence[RewardResult]]

MOST_PAIRS = 10_000
"""pairs of answers that are graded; in larger evaluations the others are compared as text"""

_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,40})(?:\.[0-9]{1,40}|/0*[1-9][0-9]{0,39})?")


def vote(extracted: str | None) -> Hashable:
    """The vote of an answer by its text: a number by its value; None without an answer.

    >>> vote("1,080.0") == vote("1080"), vote("1/2") == vote("0.5"), vote(" x "), vote(None)
    (True, True, 'x', None)
    """
    text = None if extracted is None else extracted.strip()
    return Fraction(text.replace(",", "")) if text and _NUMBER.fullmatch(text) else text


def merged(
    responses: Sequence[Response], results: Sequence[RewardResult], correct_from: float, regrade: Regrade
) -> list[str | None]:
    """The extracted answer of each response, the same text for wrong answers to a prompt that the grader calls equal.

    Args:
        regrade: the grader's results for the responses, whose ground truths have been replaced.
    """
    firsts = _first_of_each_answer(responses, results, correct_from)
    pairs = [
        pair
        for votes in firsts.values()
        for (one, first), (other, second) in combinations(votes.items(), 2)
        for pair in [(first, second)]
        if not (isinstance(one, Fraction) and isinstance(other, Fraction))
    ][:MOST_PAIRS]
    asked = [replace(responses[first], ground_truth=results[second].extracted) for first, second in pairs]
    same = {index: index for votes in firsts.values() for index in votes.values()}
    for (first, second), graded in zip(pairs, regrade(asked) if asked else (), strict=True):
        if graded.score is not None and graded.score >= correct_from:
            root = same[first]
            same = {index: root if of == same[second] else of for index, of in same.items()}
    answers = []
    for response, result in zip(responses, results, strict=True):
        index = firsts[response.data_source, response.prompt].get(vote(result.extracted))
        answers.append(result.extracted if index is None else results[same[index]].extracted)
    return answers


def _first_of_each_answer(
    responses: Sequence[Response], results: Sequence[RewardResult], correct_from: float
) -> dict[Hashable, dict[Hashable, int]]:
    """Prompt -> vote -> index of its first response, of wrong responses that a scorer alone scored."""
    firsts: dict[Hashable, dict[Hashable, int]] = defaultdict(dict)
    for index, (response, result) in enumerate(zip(responses, results, strict=True)):
        wrong = result.score is not None and result.score < correct_from
        if wrong and result.extracted and response.row.get("environment_reward") is None:
            firsts[response.data_source, response.prompt].setdefault(vote(result.extracted), index)
    return firsts
