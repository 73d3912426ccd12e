r"""The answer that a response states: one rule for all scorers.

=====================================================  ======================
response                                               answer
=====================================================  ======================
``\boxed{5}, no, \boxed{7}``                           ``7``
``\boxed{5} or \boxed{7}``, ``Answer: $5$ or $7$``     ``5, 7``: alternatives
``Answer:``, and ``\[``, ``7``, ``\]`` in three lines  ``7``
``答案：7。``                                           ``7``
``The answer is 7, because 5 is too small``            ``7``
``So x = 5 or x = 7.``                                 ``5, 7``
=====================================================  ======================

The last box, phrase, formula or number counts, with all that is joined to it
(:mod:`~corerl_rewards.scorers.alternatives`).
"""

import re

from corerl_rewards.scorers.alternatives import (
    BROKEN,
    FORMULA,
    NEAR,
    NUMBER,
    boxed_answer,
    content_of,
    joined_items,
    leading_formulas,
)
from corerl_rewards.scorers.boxed import last_boxes
from corerl_rewards.scorers.exact_numbers import number_spans
from corerl_rewards.scorers.spelling import as_latex
from corerl_rewards.scorers.values import LONGEST_ANSWER, hedged

TAIL = 4000
"""characters at the end of a response that are searched for phrases and formulas"""
MOST_ITEMS = 50
"""numbers at the end of a response that may be one answer"""

_DISPLAYS = "equation|align|gather|multline|eqnarray|flalign|displaymath|math"
_DISPLAY = re.compile(
    rf"\$\$.{{1,1000}}?\$\$|\\\[.{{1,1000}}?\\\]|\\begin\{{({_DISPLAYS})(\*?)\}}.{{1,1000}}?\\end\{{\1\2\}}", re.DOTALL
)
_ENVIRONMENT = re.compile(rf"\\(?:begin|end)\{{(?:{_DISPLAYS})\*?\}}")
_ALIGNMENT = re.compile(r"\\(?:begin|end)\{(?:aligned|gathered|split)\}|(?<!\\)&(?=\s*=)|(?<==)\s*&")
_CONTINUED = re.compile(  # by an alternative in a line of its own
    r"\n\s{0,8}(?=(?:or|and)\b\W*(?:[A-Za-z]+\s+){0,2}[-$\\(0-9])|(?<=[^A-Za-z]or)\s{0,8}\n", re.IGNORECASE
)
_LINE = r"^[ \t#>*_]*(?:final[ \t]+|最终)?(?:answer|答案)[ \t*_]*$"
_COLON = r"(?:(?<![A-Za-z])answers?|答案)[\])\"]?[ \t*_]*[:=]"
_MARK = re.compile(
    rf"{_LINE}|{_COLON}|\banswers?[ \t*_]+(?:is|are|should be|must be)(?![a-z])|答案[是为]|####",
    re.IGNORECASE | re.MULTILINE,
)
_PHRASE = re.compile(rf"(?:{_MARK.pattern})(?:(?!\.\s)[^\n])*", re.IGNORECASE | re.MULTILINE)
_ANSWER_LINE = re.compile(rf"{_LINE}|{_COLON}|答案[是为]", re.IGNORECASE | re.MULTILINE)
_EXPRESSION = re.compile(r"(?<![0-9.,])[0-9][0-9.,]*(?:\s?[-–/^*×:+]\s?[0-9][0-9.,]*)*\s?[-–/^*×:+]\s?$")
_FINALLY = re.compile(r"\bfinal answer is[ \t:*]*|####[ \t*]*", re.IGNORECASE)
_BEGINNING = re.compile(
    r"(?:[\s*_:`#]|```\w*|(?<=\n)>|(?:clearly|exactly|hence|indeed|just|obviously|simply|then|therefore|thus)\b,?(?=\s))*",
    re.IGNORECASE,
)
_CLAUSE = re.compile(
    r"(?<!\.)\.(?:\s+(?!\})|$)|;(?!\s*[-$\\(]*[0-9])|,?\s\(?(?:because|since|which|as|so|not|but|where)\s"
    r"|,?(?:因为|所以|其中)"
)
_SECOND_THOUGHT = re.compile(
    r"[,.;]?\s*\(?(?:but\b.{0,40}\b(?:could|might|may|maybe|perhaps|possibly|or)\b|or\b)", re.IGNORECASE
)
_ABOUT = re.compile(r"^~(?=\s*[-$0-9])")
_DENIAL = re.compile(
    r"(?:\b(?:not|never|cannot|unlikely|doubt|neither|nor|rather than|instead of)\b|n['’]t\b|不)"
    r"(?:(?![,.;:!?]|\b(?:so|then|thus|therefore|hence|but|because|since|and|yet|means?|implies|leaves)\b).)*$"
    r"|(?:\b(?:if|unless|whether|suppos(?:e|ing)|assum(?:e|ing))(?:\s+that)?(?:\s+the(?:\s+\w+)?)?|如果|假如)\s*$",
    re.IGNORECASE,
)
"""a word that denies the rest of its clause, or supposes what follows"""

_REMARK = re.compile(r",\s+(?!(?:or|and|but|maybe|perhaps|possibly|probably)\b)[a-z]{2}.*")
_CHANGED = re.compile(
    r"\b(?:half|twice|double|triple|thrice|quarter|third|negative|minus|plus|times|divided|multiplied|root|square[ds]?|"
    r"cubed?|factorial|dozens?|hundreds?|thousands?|millions?|billions?)\b",
    re.IGNORECASE,
)
_POSSIBLE = re.compile(r"\b(?:that|which|who) (?:could|might|may)\b")
"""words of a question: the number of points that could be in it"""
_SENTENCE = re.compile(r"[A-Za-z]+['’]?[a-z]*[ \t]+[A-Za-z]{2,}|[\u4e00-\u9fff]{2}")
_VERB = re.compile(r".*(?:\b(?:is|are|was|were|equals)\b|=)\s*(.+)", re.DOTALL)
_NUMERIC = re.compile(
    r"(?:\\boxed\s*\{|\\[(\[]|[\s$({\[*\\]){0,8}[-+−–]?\s?(?:\\?[$€£¥₹]\s*)?[-+]?(?:\.?[0-9]|\\[dt]?frac)"
)


def final_answer(response: str) -> str | None:
    r"""The final answer of a response in any form, or None.

    The last box, unless "final answer is" or ``####`` comes later; the text after the last "answer is", "Answer:" or
    ``####``; the last formula, or the last number after it.

    >>> final_answer("Thus the answer is $x = 5$."), final_answer(r"$a$ and \(b\)"), final_answer("7 or so")
    ('x = 5', 'a, b', '7, or so')
    """
    if "\\boxed" in response or "\\fbox" in response:
        *_, (_, end, last) = last_boxes(response, most=1)
        later = list(_FINALLY.finditer(tail := response[end:][-TAIL:]))
        said = tail[later[-1].end() :].partition("\n")[0] if later and last is not None else ""
        # mathematics: "the final answer is positive" is a remark
        return _said(said) if re.match(r"[-−–$\\(\[]*[0-9$\\]", said) else boxed_answer(response)
    tail = _in_one_line(response[-TAIL:])
    stated = _stated(tail, _MARK)
    return _last(BROKEN.sub(lambda match: match[1] or " ", _without_denied(tail))) if stated is None else stated


def line_answer(text: str) -> str | None:
    """The answer after the last "Answer:"; None without one."""
    return _stated(_in_one_line(text), _ANSWER_LINE)


def number_after(text: str, mark: str) -> str | None:
    """The answer after the last mark, if it begins with a number; else None.

    >>> number_after("#### 17 + 25 = 42", "####"), number_after("#### $1,080, in all", "####")
    ('17 + 25 = 42', '$1,080')
    """
    _, found, tail = text.rpartition(mark)
    line = _REMARK.sub("", tail.lstrip(" \t\n\r*_`:").partition("\n")[0]) if found else ""
    return _said(line) if _NUMERIC.match(as_latex(line[:LONGEST_ANSWER])) else None


def last_numbers(text: str) -> str | None:
    """The last number in a text, with the numbers that it is joined to; None without one.

    >>> last_numbers("so 10-3 = 7."), last_numbers("at -5 degrees"), last_numbers("x = 5 or x = 7"), last_numbers("x")
    ('7', '-5', '5, 7', None)
    """
    spans = number_spans(text)[-MOST_ITEMS:]
    if spans and (expression := _EXPRESSION.search(text, spans[-1][0] and max(0, spans[-1][0] - NEAR), spans[-1][0])):
        spans = [*spans[:-1], (expression.start(), spans[-1][1])]
    return joined_items(text, spans)


def has_formula(text: str) -> bool:
    """Whether a text holds a box or a formula between signs, so that it is more than an answer."""
    return "\\boxed" in text or FORMULA.search(text) is not None


def denied(text: str, place: int) -> bool:
    """Whether the clause before a place denies or supposes the rest.

    >>> denied("I don't think the answer is 7", 14), denied("It is not 5, so the answer is 7", 13)
    (True, False)
    """
    return _DENIAL.search(text[max(0, place - NEAR) : place].rpartition("\n")[2]) is not None


def _without_denied(text: str) -> str:
    """The text without phrases such as "the answer is 7" that are denied or supposed."""
    return _PHRASE.sub(lambda match: "" if denied(text, match.start()) else match.group(), text)


def _in_one_line(text: str) -> str:
    """The text with each displayed formula, and its alternatives, in one line, between dollars."""
    return _CONTINUED.sub(" ", _ENVIRONMENT.sub("$$", _DISPLAY.sub(_line, text)))


def _line(formula: re.Match[str]) -> str:
    return _ALIGNMENT.sub(" ", formula.group().replace("\n", " "))


def _stated(text: str, mark: re.Pattern[str]) -> str | None:
    """The answer after the last mark that a text follows."""
    for match in reversed(list(mark.finditer(text))):
        if denied(text, match.start()):
            continue
        begin = _BEGINNING.match(text, match.end())
        line = text[begin.end() if begin else match.end() :].partition("\n")[0]
        if line.strip():
            return _said(line)
    return None


def _said(phrase: str) -> str:
    """The answer that a phrase begins with."""
    phrase = _ABOUT.sub("about ", phrase.strip())
    if "\\boxed" in phrase or "\\fbox" in phrase:
        return boxed_answer(phrase) or phrase
    if (formulas := leading_formulas(phrase)) is not None:
        return formulas
    clause = _CLAUSE.search(phrase)
    if clause and _SECOND_THOUGHT.match(phrase, clause.start()):
        clause = None
    said = phrase[: clause.start() if clause else None].strip(" *:_`✓✔✅")
    if not _SENTENCE.match(said) or hedged(_POSSIBLE.sub("", said), ""):
        return said
    if verb := _VERB.match(said):
        return _said(verb[1])
    found = [match.group() for match in (FORMULA if FORMULA.search(said) else NUMBER).finditer(said) if match.group()]
    return content_of(found[0]) if len(found) == 1 and not _CHANGED.search(said) else said


def _last(text: str) -> str | None:
    """The last formula or number, whichever is later, with those that it is joined to."""
    formulas = [match.span() for match in FORMULA.finditer(text)]
    end = formulas[-1][1] if formulas else 0
    numbers = [match.span() for match in NUMBER.finditer(text, end) if match.group()]
    return joined_items(text, [*formulas, *numbers][-MOST_ITEMS:])
