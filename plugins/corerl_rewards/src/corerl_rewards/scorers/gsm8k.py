r"""Scorer of GSM8K (Cobbe et al., 2021, arXiv 2110.14168) and of any set with answers after ``####``.

===================================  ==========  ==========  ==========
end of the response                  strict      flexible    fallback
===================================  ==========  ==========  ==========
``#### 18``                          18          18          18
``\boxed{18}``, after 2 steps        none        2           18
``so 18 apples``                     none        18          18
``#### Step 2``, and below ``18``    none        18          18
``#### 18 or 19``                    18, 19      18, 19      18, 19
===================================  ==========  ==========  ==========

Several numbers are no answer.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from corerl_rewards.options import Gsm8kOptions
from corerl_rewards.scorers.alternatives import boxed_answer
from corerl_rewards.scorers.boxed import last_boxes
from corerl_rewards.scorers.characters import answer_text, readable
from corerl_rewards.scorers.exact_numbers import exact, is_number
from corerl_rewards.scorers.extraction import last_numbers, number_after
from corerl_rewards.scorers.units import ratio, split_unit
from corerl_rewards.scorers.values import LONGEST_ANSWER, stated_value

MARK = "####"
_HEADING = re.compile(r"(?<!#)#{4,6}[ \t*]{0,8}(?:[0-9]{1,2}[.):][ \t]{1,8})?[A-Za-z][^\n]*\n(?=\s{0,40}\S)")
"""a line that begins as an answer does, with a title and further text below"""
_DEFAULT = Gsm8kOptions()


def gsm8k(
    response: str,
    ground_truth: Any,
    data_source: str,
    extra_info: Mapping[str, Any],
    options: Gsm8kOptions = _DEFAULT,
) -> Mapping[str, Any]:
    """1.0 if the response's number equals ``ground_truth`` exactly (42.0 equals 42), else 0.0.

    Raises:
        ValueError: ``ground_truth`` is not a number.
    """
    written = readable(str(ground_truth))
    truth = exact(written)
    found = _FOUND[options.method](answer_text(response, options))
    return {"score": float(found is not None and _equals(found, written, truth)), "extracted": found}


def _first_form(answer: str) -> str | None:
    """The number after the mark, else the box, else the last number."""
    answer = _HEADING.sub("", answer)
    if MARK in answer:
        return number_after(answer, MARK)
    return boxed_answer(answer) if last_boxes(answer, most=1) else last_numbers(answer)


_FOUND = {"strict": lambda answer: number_after(answer, MARK), "flexible": last_numbers, "fallback": _first_form}


def _equals(found: str, written: str, truth: Decimal) -> bool:
    """Whether a number with a unit is the ground truth; 75% is 0.75, too."""
    if is_number(found) and found.isascii() and written.isascii():
        return exact(found) == truth
    value = exact(found) if is_number(found) else stated_value(found)
    factor = ratio(split_unit(found[:LONGEST_ANSWER])[1], split_unit(written)[1])
    if value is None or factor is None:
        return False
    wanted = Fraction(truth) / factor
    return value == wanted or ("%" in found and value / 100 == wanted)
