"""Scorer of DAPO-Math-17k (Yu et al., 2025, arXiv 2503.14476): the last line ``Answer: …``, as its prompts require.

The line is found and cleaned as in Minerva (Lewkowycz et al., 2022, arXiv 2206.14858, appendix D.1): ``$…$``,
``\\boxed{}``, ``\\text{}``, units and thousands commas are removed, and of an equation the right side is kept. The rest
must equal the ground truth, as text or as a number.

=======================================  ============  ======
response ends in                         ground truth  score
=======================================  ============  ======
``Answer: 34``                           34            1
``**Answer:** $x = \\boxed{34}$.``        34            1
``Answer: 34 or 35``                     34            0
``so it is \\boxed{34}``                  34            0; 1 with ``fallback_to_boxed: true``
=======================================  ============  ======

verl also reads the last 300 characters, and scores a wrong answer -1 (``wrong_score: -1``; with CoreRL's preset
``dapo`` the reward manager does that). If these characters hold no ``Answer:`` line, verl uses the last ``\\boxed{}``
that begins in the last 100 (``fallback_to_boxed: true``); a box never corrects a wrong ``Answer:`` line. verl keeps
asterisks and a final full stop in the answer, and reads reasoning as text; here these are ignored.
"""

import re
from collections.abc import Mapping
from typing import Any

from corerl_rewards.answers import answer_part
from corerl_rewards.options import MathDapoOptions
from corerl_rewards.scorers.boxed import last_boxed, normalise
from corerl_rewards.scorers.exact_numbers import is_number
from corerl_rewards.scorers.spelling import as_latex, rational
from corerl_rewards.scorers.units import other_currency, split_unit
from corerl_rewards.scorers.values import parts, plain_thousands, sides

_LINE = re.compile(r"answer[ \t*_]*:\s*([^\n]+)", re.IGNORECASE)
_DOLLARS = re.compile(r"\$(.*?)\$", re.DOTALL)
_DEFAULT = MathDapoOptions()
BOX_WINDOW = 100
"""characters at the end of the response that verl searches for a box"""


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
    """
    truth = undressed(str(ground_truth))
    if not truth:
        raise ValueError("the ground truth is empty")
    answer = _answer(answer_part(response, options)[-options.window :], options.fallback_to_boxed)
    correct = answer is not None and _same(answer, truth) and not other_currency(answer, str(ground_truth))
    return {"score": 1.0 if correct else options.wrong_score, "extracted": answer}


def _answer(tail: str, fallback_to_boxed: bool) -> str | None:
    lines = _LINE.findall(tail)
    found = lines[-1] if lines else last_boxed(tail[-BOX_WINDOW:]) if fallback_to_boxed else None
    return None if found is None else undressed(found)


def undressed(answer: str) -> str:
    r"""The answer without markup, in one spelling.

    >>> undressed(r"** $x = \boxed{1,234}$ square units."), undressed(r"\frac12")
    ('1,234', '\\frac{1}{2}')
    """
    answer = answer.lstrip(" \t*_").rstrip(" \t*_.")
    if is_number(answer):
        return answer
    boxed = last_boxed(answer)
    if boxed:
        answer = boxed
    elif dollars := _DOLLARS.findall(answer):
        answer = dollars[-1] if dollars[-1].strip() else answer
    value, _ = split_unit(as_latex(_last_side(answer).strip(" .")))
    return normalise(value).removesuffix("%").removesuffix("\\")


def _last_side(answer: str) -> str:
    """The right side of an equation; the whole text of several equations, or of one between different numbers."""
    if "=" not in answer:
        return answer
    values = {rational(normalise(side)) for side in sides(answer)} - {None}
    several = len(values) > 1 or len(parts(plain_thousands(answer))) > 1
    return answer if several else answer.rpartition("=")[2]


def _same(answer: str, truth: str) -> bool:
    value = rational(answer)
    return answer == truth or (value is not None and value == rational(truth))
