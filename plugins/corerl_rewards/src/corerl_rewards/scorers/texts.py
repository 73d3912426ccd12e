"""Answers in words: accepted answers, the given answer, and one spelling for both."""

import re
import string
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from corerl_rewards.scorers.characters import readable
from corerl_rewards.scorers.countdown import last_answer

_ARTICLES = re.compile(r"(?<![\w+-])(?:a|an|the)(?![\w+#-])")
_FRACTION = re.compile("[¼-¾⅐-⅞↉]")
_PUNCTUATION = re.compile(f"[{re.escape(string.punctuation)}]")
_OF_NUMBERS = re.compile(  # a point, comma, colon or stroke between digits, a point before digits, a sign
    r"(?<=[0-9])(?:[.:/]|,(?![0-9]{3}(?![0-9])))(?=[0-9])|(?<![\w.])\.(?=[0-9])|(?<![A-Za-z])-(?=[$.]?[0-9])"
    r"|\+|(?<=\w)[\^*](?=\w)|(?<=[A-Za-z])#|(?<=\b[A-Za-z])-(?!\w)"
)
_RELATIONS = re.compile(r"\s*([<=>])\s*")


def accepted(ground_truth: Any) -> list[str]:
    """The accepted answers of a ground truth: a text or number, a list of these, or either under ``target``.

    Raises:
        ValueError: there is no accepted answer, or an empty one.
    """
    if isinstance(ground_truth, Mapping):
        ground_truth = ground_truth.get("target")
    several = isinstance(ground_truth, Sequence) and not isinstance(ground_truth, str)
    answers = [str(answer) for answer in (ground_truth if several else [ground_truth]) if answer is not None]
    if not answers or not all(answer.strip() for answer in answers):
        raise ValueError(f"the ground truth is empty: {ground_truth!r:.60}")
    return answers


def given_answer(response: str) -> str:
    """The text between the last ``<answer>`` and ``</answer>``; without tags the whole response."""
    tagged = last_answer(response)
    return response.strip() if tagged is None else tagged


def plain(text: str) -> str:
    """Lower case, without punctuation, articles and extra spaces, as SQuAD compares; those of numbers and names stay.

    >>> plain("The  Eiffel-Tower!"), plain("The The"), plain("-1.5"), plain("1,000."), plain("C++")
    ('eiffeltower', 'the the', '-1.5', '1000', 'c++')
    """
    text = _FRACTION.sub(_with_stroke, _RELATIONS.sub(r" \1 ", readable(text))).casefold()
    kept = {match.start() for match in _OF_NUMBERS.finditer(text)}
    words = _PUNCTUATION.sub(
        lambda match: match.group() if match.start() in kept or match.group() in "<=>" else "", text
    )
    return " ".join(_ARTICLES.sub(" ", words).split()) or " ".join(text.split())


def _with_stroke(match: re.Match[str]) -> str:
    """1/2 for ½."""
    return unicodedata.normalize("NFKC", match.group()).replace("⁄", "/")
