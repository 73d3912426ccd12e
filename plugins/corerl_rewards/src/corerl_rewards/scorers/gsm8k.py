"""Scorer of GSM8K (Cobbe et al., 2021, arXiv 2110.14168) and of any set with answers after ``####``."""

from collections.abc import Mapping
from typing import Any

from corerl_rewards.answers import answer_part
from corerl_rewards.options import Gsm8kOptions
from corerl_rewards.scorers.exact_numbers import exact, last_number, leading_number
from corerl_rewards.scorers.units import other_currency

MARK = "####"
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
    written = str(ground_truth)
    truth = exact(written)
    answer = answer_part(response, options)
    found = after_mark(answer) if options.method == "strict" else last_number(answer)
    if found is None or other_currency(found, written):
        return {"score": 0.0, "extracted": found}
    return {"score": float(exact(found) == truth), "extracted": found}


def after_mark(text: str) -> str | None:
    """The number right after the last ``####``, as written, or None."""
    _, mark, tail = text.rpartition(MARK)
    return leading_number(tail.replace("{,}", ",")) if mark else None
