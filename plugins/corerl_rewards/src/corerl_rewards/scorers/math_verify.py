r"""Scorer for mathematics in any form, with the library math-verify (Kydlíček, 2024,
github.com/huggingface/Math-Verify).

The answer is the first of: the last ``\boxed{}`` (or several, separated only by "and", "or" and commas), unless "final
answer is" or ``####`` comes later; the text after the last "answer is", "Answer:" or ``####``; the last formula between
``$…$``, ``\(…\)`` or ``\[…\]``, or the last number after it. The score is 1 if the answer is the same mathematical
object as the ground truth:

==============================  =========================  =====
answer                          ground truth               score
==============================  =========================  =====
``\sqrt{12}``                   ``2\sqrt{3}``              1
``0.5``, ``50\%``               ``\frac{1}{2}``            1
``\{3, 1\}``, ``3, 1``          ``\{1, 3\}``               1
``(3, 1)``                      ``(1, 3)``                 0
``(0, 1]``                      ``0 < x \le 1``            1
``5\text{ cm}``                 ``5``                      1
==============================  =========================  =====

A tuple has an order; a set, and a list without brackets, has none. The scorer ``math`` requires a box; this one accepts
prose as well: use it for prompts that ask for no box. If the last formula cannot be parsed, math-verify's own search
would use an earlier one; here the last one is final.
"""

import re
from collections.abc import Mapping
from typing import Any

from corerl_rewards.answers import answer_part
from corerl_rewards.options import MathVerifyOptions
from corerl_rewards.scorers.boxed import last_boxes, normalise
from corerl_rewards.scorers.math import equal_answers, readable_truth

_ONE = r"\$\$.+?\$\$|(?<!\\)\$(?:\\.|[^$\n\\])+\$|\\\((?!\s*\n).+?\\\)|\\\[.+?\\\]"
_AND = r"\s*(?:,?\s*\\?q?quad\s*|,?\s*(?:and|or)\s+|,)\s*"
_FORMULAS = re.compile(rf"(?:{_ONE})(?:{_AND}(?:{_ONE}))*", re.DOTALL)
_FORMULA = re.compile(_ONE, re.DOTALL)
_BROKEN = re.compile(rf"({_ONE})|(?<!\\)\$[ \t]*\n[^$]*\n[ \t]*\$|\\\(\s*\n.*?\n[ \t]*\\\)", re.DOTALL)
"""a formula; a formula broken over lines does not count, as for math-verify"""
_PHRASE = re.compile(r".*(?:\banswer(?:[ \t]+is|[ \t*]*:)[ \t:*]*\n?|####[ \t*]*)([^\n]+)", re.IGNORECASE | re.DOTALL)
_FINALLY = re.compile(r".*(?:\bfinal answer is[ \t:*]*|####[ \t*]*)([^\n]+)", re.IGNORECASE | re.DOTALL)
_CLAUSE = re.compile(r"\.(?:\s|$)|;|,?\s(?:because|since|which|as|so|not|but)\s")
_VERB = re.compile(r".*(?:\b(?:is|are|was|were|equals)\b|=)\s*(.+)", re.DOTALL)
_NUMBER = re.compile(
    r"(?<![\w.^}])[-−–]?\\?\$?(?:[0-9]{1,3}(?:[, ][0-9]{3})+(?![0-9])|[0-9]+|(?=\.[0-9]))(?:[.,][0-9]+)?"
    r"(?:\s*/\s*[0-9]+|\s*\\?%)?"
    r"|-?\\[dt]?frac\{[^{}]+\}\{[^{}]+\}"
)
_SPACE = r"(?:[\s$,;&{}]|\\[()\[\],;! ]|\\q?quad|\\text\{)*"
_NAME = r"[A-Za-z]_(?:\w|\{\w+\})\s*="
_BETWEEN_BOXES = re.compile(
    rf"{_SPACE}(?:(?:for part \([a-z]\)|[a-z]+)\s)?(?:\b(?:and|or)\b|\+\++)?{_SPACE}(?:{_NAME})?{_SPACE}\\?"
)
TAIL = 4000
"""characters at the end of a response that are searched for formulas and numbers"""

_DEFAULT = MathVerifyOptions()


def math_verify(
    response: str,
    ground_truth: Any,
    data_source: str,
    extra_info: Mapping[str, Any],
    options: MathVerifyOptions = _DEFAULT,
) -> Mapping[str, Any]:
    """1.0 where the response's answer equals ``ground_truth``, else 0.0.

    Raises:
        ValueError: ``ground_truth`` is empty.
        TimeoutError: math-verify took longer than ``options.timeout``.
    """
    truth = readable_truth(ground_truth)
    if "\\boxed" in truth or _FORMULA.search(truth):  # a solution, or an answer between dollars
        truth = final_answer(truth) or truth
    answer = final_answer(answer_part(response, options))
    return {"score": float(bool(answer) and equal_answers(str(answer), truth, options.timeout)), "extracted": answer}


def final_answer(response: str) -> str | None:
    r"""The final answer of a response, or None.

    >>> final_answer("Thus the answer is $x = 5$."), final_answer(r"$a$ and \(b\)"), final_answer("7 or so")
    ('x = 5', 'a, b', '7')
    """
    if "\\boxed" in response or "\\fbox" in response:
        return _boxed(response)
    tail = response[-TAIL:]
    phrase = _PHRASE.match(tail)
    return _said(phrase[1]) if phrase else _last(_BROKEN.sub(lambda match: match[1] or " ", tail))


def _boxed(response: str) -> str | None:
    """The last box, unless "final answer is" comes later; boxes joined to it ("… and …") are returned as a list."""
    (start, end_of_last, last), *others = reversed(last_boxes(response))
    later = _FINALLY.match(response[end_of_last:][-TAIL:])
    if later and re.match(r"[-−–$\\(\[]*[0-9$\\]", later[1]):  # mathematics: "the final answer is positive" is a remark
        return _said(later[1])
    if not last:
        return last
    answers = {normalise(last): last}
    for begin, end, content in others:
        if content is None or end > start or not _BETWEEN_BOXES.fullmatch(response[end : min(start, end + 60)]):
            break
        start = begin
        answers.setdefault(normalise(content), content)
    return last if len(answers) < 2 else ", ".join(reversed(answers.values()))


def _said(phrase: str) -> str:
    """The text after "answer is"."""
    run = _FORMULAS.match(phrase)
    if run:
        return _contents(run.group())
    said = _CLAUSE.split(phrase, maxsplit=1)[0].strip(" *:.")
    if verb := _VERB.match(said) if said[:1].isalpha() and " " in said else None:
        return _said(verb[1])
    found = [match.group() for match in (_FORMULA.finditer(said) if "$" in said else _NUMBER.finditer(said))]
    words = re.search(r"[A-Za-z]{2,}\s+[A-Za-z]{2,}", said)
    return _contents(found[0]) if len(found) == 1 and words else said


def _last(tail: str) -> str | None:
    """The last formula or the last number, whichever is later."""
    runs = list(_FORMULAS.finditer(tail))
    numbers = _NUMBER.findall(tail, runs[-1].end() if runs else 0)
    if numbers:
        return str(numbers[-1]).strip()
    return _contents(runs[-1].group()) if runs else None


def _contents(formulas: str) -> str:
    """The text between the signs of formulas; a text without such signs is unchanged."""
    found = [_SIGNS.sub("", each).strip().rstrip(".,;") for each in _FORMULA.findall(formulas)]
    return ", ".join(found) if found else formulas.strip()


_SIGNS = re.compile(r"^(?:\$\$?|\\[(\[])|(?:\$\$?|\\[)\]])$")
