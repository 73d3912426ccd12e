r"""Scorer of multiple choice: the letter that the response settles on.

It is looked for in this order, and the last of its kind counts: ``\boxed{}``; ``<answer>…</answer>``; "answer is",
"answer:", "option", "choice"; a last line that is a letter, ``B``, ``(B)`` or ``B. …``. A letter elsewhere is none
("A" and "I" are words), and two letters are no answer. ``Answer: B`` is what simple-evals asks of GPQA and MMLU.

=======================================  ============  =====
response                                 ground truth  score
=======================================  ============  =====
``A is too small. The answer is (B).``   B             1
``Answer: **B**``                        B             1
``\boxed{\text{B}}``                     (B)           1
``The answer is A or B``                 B             0
``A bicycle``                            A             0
=======================================  ============  =====
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from corerl_rewards.options import MultipleChoiceOptions
from corerl_rewards.scorers.boxed import last_boxed
from corerl_rewards.scorers.countdown import last_answer

_DRESS = re.compile(r"\\(?:textbf|text|mathrm|mathbf)\s*|[*_$\\{}]")
_DEFAULT = MultipleChoiceOptions()


def multiple_choice(
    response: str,
    ground_truth: Any,
    data_source: str,
    extra_info: Mapping[str, Any],
    options: MultipleChoiceOptions = _DEFAULT,
) -> Mapping[str, Any]:
    """1.0 where the response settles on the letter of ``ground_truth`` (``B`` or ``(B)``), else 0.0.

    Raises:
        ValueError: ``ground_truth`` is none of ``options.letters``.
    """
    truth = str(ground_truth).strip().strip("().").upper()
    if len(truth) != 1 or truth not in options.letters:
        raise ValueError(f"the ground truth {ground_truth!r:.60} is none of the letters {options.letters}")
    answer = chosen(response, options.letters)
    return {"score": float(answer == truth), "extracted": answer}


def chosen(response: str, letters: str) -> str | None:
    """The letter that a response settles on, or None."""
    alone, phrase = _patterns(letters)
    for part in (last_boxed(response), last_answer(response)):
        if part is not None:
            return _single(alone.match(_DRESS.sub("", part).strip()))
    text = _DRESS.sub("", response[-2000:]).rstrip()
    phrases = list(phrase.finditer(text))
    return _single(phrases[-1] if phrases else alone.match(text.rpartition("\n")[2].strip()))


def _single(match: re.Match[str] | None) -> str | None:
    return match["letter"] if match and not match["another"] else None


@lru_cache(maxsize=16)
def _patterns(letters: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A text that is a letter, perhaps with what it stands for; and a phrase that names one."""
    letter = f"[(\\[]?(?P<letter>[{letters}])"
    another = rf"(?P<another>[)\]]?\s*(?:,|/|&|or\b|and\b)\s*[(\[]?[{letters}](?![A-Za-z]))?"
    alone = re.compile(rf"{letter}{another}(?:[)\].:,]|$)")
    phrase = re.compile(
        rf"(?i:\b(?:answer|option|choice)\b(?:\s+(?:is|should be|must be))?)[\s:]*(?i:option\s*|choice\s*)?"
        rf"{letter}(?![A-Za-z0-9'’]){another}"
    )
    return alone, phrase
