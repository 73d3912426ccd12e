r"""Scorer of multiple choice: the letter that a response finally chooses.

The last of these counts: ``\boxed{}``; ``<answer>…</answer>``; "answer is", "answer:" or ``####`` before a letter.
Without these, the last "option" or "choice" before a letter counts; then a last line that is a letter, ``B``, ``(B)``
or ``B. …``. Other letters do not count ("A" and "I" are words), and two letters are no answer. The prompts of GPQA and
MMLU in simple-evals ask for ``Answer: B``.

=======================================  ============  =====
response                                 ground truth  score
=======================================  ============  =====
``A is too small. The answer is (B).``   B             1
``Answer: **B**``                        B             1
``\boxed{\text{B}}``                     (B)           1
``\boxed{A}`` … ``#### B``               B             1
``The answer is A or B``                 B             0
``A bicycle``                            A             0
=======================================  ============  =====
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from corerl_rewards.answers import answer_part
from corerl_rewards.options import MultipleChoiceOptions
from corerl_rewards.scorers.boxed import last_boxes
from corerl_rewards.scorers.countdown import last_answer

_DRESS = re.compile(r"\\(?:textbf|text|mathrm|mathbf)\s*|[*_$\\{}]")
TAIL = 2000
"""characters at the end of a response that are searched for phrases"""

_DEFAULT = MultipleChoiceOptions()


def multiple_choice(
    response: str,
    ground_truth: Any,
    data_source: str,
    extra_info: Mapping[str, Any],
    options: MultipleChoiceOptions = _DEFAULT,
) -> Mapping[str, Any]:
    """1.0 if the response chooses the letter of ``ground_truth`` (``B`` or ``(B)``), else 0.0.

    Raises:
        ValueError: ``ground_truth`` is not among ``options.letters``.
    """
    truth = str(ground_truth).strip().strip("().").upper()
    if len(truth) != 1 or truth not in options.letters:
        raise ValueError(f"the ground truth {ground_truth!r:.60} is none of the letters {options.letters}")
    answer = chosen(answer_part(response, options), options.letters)
    return {"score": float(answer == truth), "extracted": answer}


def chosen(response: str, letters: str) -> str | None:
    """The letter that a response finally chooses, or None."""
    alone, marked, named = _patterns(letters)
    tail = response[-TAIL:]
    begin, part = _framed(response)
    marks = list(marked.finditer(_undressed(tail[max(0, begin - len(response) + len(tail)) :])))
    if marks:
        return _single(marks[-1])
    if part is not None:
        return _single(alone.match(_undressed(part).strip()))
    text = _undressed(tail).rstrip()
    names = list(named.finditer(text))
    return _single(names[-1] if names else alone.match(text.rpartition("\n")[2].strip()))


def _framed(response: str) -> tuple[int, str | None]:
    """The end and the content of the last box or ``<answer>…</answer>``, whichever is later; 0 and None without one."""
    found = [(end, content or "") for _, end, content in last_boxes(response, most=1)]
    if (answer := last_answer(response)) is not None:
        found.append((response.rindex("</answer>"), answer))
    return max(found, default=(0, None))


def _undressed(text: str) -> str:
    return _DRESS.sub("", text)


def _single(match: re.Match[str] | None) -> str | None:
    return match["letter"] if match and not match["another"] else None


@lru_cache(maxsize=16)
def _patterns(letters: str) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Patterns of a text that is a letter, perhaps with its meaning, and of a letter after a mark or a phrase."""
    letter = f"[(\\[]?(?P<letter>[{letters}])"
    another = rf"(?P<another>[)\]]?\s*(?:,|/|&|or\b|and\b)\s*[(\[]?[{letters}](?![A-Za-z]))?"
    alone = re.compile(rf"{letter}{another}(?:[)\].:,]|$)")
    option, end = r"[\s:]*(?i:option\s*|choice\s*)?", rf"{letter}(?![A-Za-z0-9'’]){another}"
    marked = re.compile(rf"(?:(?i:\banswer\b)(?:\s*:|\s+(?i:is|should be|must be))|####){option}{end}")
    named = re.compile(rf"(?i:\b(?:answer|option|choice)\b(?:\s+(?:is|should be|must be))?){option}{end}")
    return alone, marked, named
