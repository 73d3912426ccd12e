"""Scorer of DAPO-Math-17k (Yu et al., 2025, arXiv 2503.14476): the last line ``Answer: …``, as its prompts require.

The answer after ``Answer:`` (or 答案：) is compared as by the scorer ``math``.

=======================================  ============  ======
response ends in                         ground truth  score
=======================================  ============  ======
``Answer: 34``                           34            1
``**Answer:** $x = \\boxed{34}$.``        34            1
``Answer:``, and ``\\[ 34 \\]`` below    34            1
``Answer: 34 or 35``                     34            0
``so it is \\boxed{34}``                  34            0; 1 with ``fallback_to_boxed: true``
=======================================  ============  ======

verl also reads the last 300 characters, and scores a wrong answer -1 (``wrong_score: -1``; with CoreRL's preset
``dapo`` the reward manager does that). If these characters hold no ``Answer:`` line, verl uses the last ``\\boxed{}``
that begins in the last 100 (``fallback_to_boxed: true``); a box never corrects a wrong ``Answer:`` line. verl compares
texts as in Minerva (Lewkowycz et al., 2022, arXiv 2206.14858, appendix D.1), and reads reasoning as text; here it is
ignored.
"""

from collections.abc import Mapping
from typing import Any

from corerl_rewards.options import MathDapoOptions
from corerl_rewards.scorers.alternatives import boxed_answer
from corerl_rewards.scorers.boxed import last_boxes
from corerl_rewards.scorers.characters import answer_text
from corerl_rewards.scorers.equality import equal_answers, readable_truth
from corerl_rewards.scorers.extraction import line_answer

_DEFAULT = MathDapoOptions()
BOX_WINDOW = 100
"""characters at the end of the response in which verl's box begins"""


def math_dapo(
    response: str,
    ground_truth: Any,
    data_source: str,
    extra_info: Mapping[str, Any],
    options: MathDapoOptions = _DEFAULT,
) -> Mapping[str, Any]:
    """1.0 if the last ``Answer:`` line holds the ground truth, else ``options.wrong_score``.

    Raises:
        ValueError: ``ground_truth`` is empty.
        TimeoutError: math-verify took longer than ``options.timeout``.
    """
    truth = readable_truth(ground_truth)
    text = answer_text(response, options)
    answer = line_answer(text[-options.window :])
    if answer is None and options.fallback_to_boxed and _has_late_box(text):
        answer = boxed_answer(text)
    correct = bool(answer) and equal_answers(str(answer), truth, options.timeout)
    return {"score": 1.0 if correct else options.wrong_score, "extracted": answer}


def _has_late_box(text: str) -> bool:
    return any(start >= len(text) - BOX_WINDOW for start, _, _ in last_boxes(text, most=1))
