"""Answers in words: accepted answers, the given answer, and one spelling for both."""

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from corerl_rewards.scorers.countdown import last_answer

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


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
    """Lower case, without punctuation, articles and extra spaces, as SQuAD compares.

    >>> plain("The  Eiffel-Tower!"), plain("The The")
    ('eiffeltower', 'the the')
    """
    words = text.casefold().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", words).split()) or " ".join(text.casefold().split())
