"""Scorer of answers in words: the given answer must equal an accepted one.

Compared as in SQuAD (Rajpurkar et al., 2016, arXiv 1606.05250) and Search-R1 (Jin et al., 2025, arXiv 2503.09516):
case, punctuation, spaces and the articles a, an, the are ignored; signs and points of numbers and names are not.
``compare: text`` compares character by character.

=========================================  ==============================  =====
response                                   ground truth                    score
=========================================  ==============================  =====
``<answer>The Beatles</answer>``           ``["Beatles", "Fab Four"]``     1
``beatles.``                               ``Beatles``                     1
``It was the Beatles``                     ``Beatles``                     0
``５``, ``5.``                              ``5``                           1
``-5``, ``0.5``                            ``5``                           0
``<think>Who?</think> The Beatles``        ``Beatles``                     1
=========================================  ==============================  =====
"""

from collections.abc import Mapping
from typing import Any

from corerl_rewards.answers import answer_part
from corerl_rewards.options import ExactMatchOptions
from corerl_rewards.scorers.characters import composed
from corerl_rewards.scorers.texts import accepted, given_answer, plain

_DEFAULT = ExactMatchOptions()


def exact_match(
    response: str,
    ground_truth: Any,
    data_source: str,
    extra_info: Mapping[str, Any],
    options: ExactMatchOptions = _DEFAULT,
) -> Mapping[str, Any]:
    """1.0 if the text between ``<answer>`` tags, or without tags the whole response, is an accepted answer.

    Args:
        ground_truth: a text or number, a list of these, or a mapping with either under ``target``.

    Raises:
        ValueError: there is no accepted answer.
    """
    spelling = plain if options.compare == "words" else _exactly
    truths = {spelling(truth) for truth in accepted(ground_truth)}
    answer = given_answer(composed(answer_part(response, options)))
    return {"score": float(spelling(answer) in truths), "extracted": answer}


def _exactly(text: str) -> str:
    return composed(text).strip()
