r"""Scorer of Geometry3K (Lu et al., 2021, arXiv 2105.04165) as verl scores it: the answer and the form.

score = (1 - w) · accuracy + w · format, with w = ``format_weight`` = 0.1.

==========  ===================================================================================================
component   1 if
==========  ===================================================================================================
accuracy    the last ``\boxed{}`` after the reasoning equals the ground truth, as for the scorer ``math``
format      the response begins with ``<think>``, and ``</think>`` and ``\boxed{…}`` follow in this order
==========  ===================================================================================================

verl compares answers by mathruler, and also accepts a box within the reasoning.
"""

from collections.abc import Mapping
from typing import Any

from corerl_rewards.answers import opened
from corerl_rewards.options import Geometry3kOptions
from corerl_rewards.scorers.alternatives import boxed_answer
from corerl_rewards.scorers.characters import answer_text
from corerl_rewards.scorers.equality import equal_answers, readable_truth

_DEFAULT = Geometry3kOptions()


def geometry3k(
    response: str,
    ground_truth: Any,
    data_source: str,
    extra_info: Mapping[str, Any],
    options: Geometry3kOptions = _DEFAULT,
) -> Mapping[str, Any]:
    """Between 0.0 and 1.0, the weighted sum of the components ``accuracy`` and ``format``.

    Raises:
        ValueError: ``ground_truth`` is empty.
        TimeoutError: math-verify took longer than ``options.timeout``.
    """
    truth = readable_truth(ground_truth)
    answer = boxed_answer(answer_text(response, options))
    accuracy = float(bool(answer) and equal_answers(str(answer), truth, options.timeout))
    form = float(well_formed(opened(response) if options.reasoning == "opened" else response))
    score = (1 - options.format_weight) * accuracy + options.format_weight * form
    return {"score": score, "accuracy": accuracy, "format": form, "extracted": answer}


def well_formed(response: str) -> bool:
    r"""Whether ``<think>``, ``</think>`` and ``\boxed{…}`` follow in this order, the first at the beginning.

    >>> well_formed(r"<think>a</think> \boxed{5}"), well_formed(r"<think>\boxed{5}</think>"), well_formed(r"\boxed{5}")
    (True, False, False)
    """
    place = 0
    for mark in ("<think>", "</think>", "\\boxed{", "}"):
        place = response.find(mark, place)
        if place < 0:
            return False
        place += len(mark)
    return response.startswith("<think>")
