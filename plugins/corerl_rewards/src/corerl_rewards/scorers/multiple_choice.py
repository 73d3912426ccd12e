r"""Scorer of multiple choice: the letter that a response finally chooses.

The last of these counts: ``\boxed{}``; ``<answer>…</answer>``; "answer is", "answer:", 答案, 选 or ``####`` before a
letter. Without these, the last letter with "option", "choice", "choose", "is correct" or the like; then a last line
that is a letter, perhaps with its meaning.

========================================================  ============
form                                                      choice
========================================================  ============
``The answer is (B).``, ``Answer: **B**``, ``Answer: b``  B
``\boxed{\text{B}}``, ``\boxed{\text{Option B}}``         B
``"B"``, ``(b)``, ``B. Paris``, as the last line          B
``B is correct.``, ``I would go with (B)``, ``So B.``     B
``答案：B``, ``故选 B``, ``Ｂ``                            B
``\boxed{A}`` … ``#### B``                                B
``The answer is A or B``, ``\boxed{A} or \boxed{B}``      none
``Option B is wrong``, ``maybe B``, ``B?``                none
``A bicycle``, ``I do not know``                          none: words
========================================================  ============

The prompts of GPQA and MMLU in simple-evals ask for ``Answer: B``.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from corerl_rewards.options import MultipleChoiceOptions
from corerl_rewards.scorers.alternatives import boxed_answer
from corerl_rewards.scorers.boxed import last_boxes
from corerl_rewards.scorers.characters import answer_text, readable
from corerl_rewards.scorers.countdown import last_answer
from corerl_rewards.scorers.extraction import denied

_DRESS = re.compile(r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf))(?=\s*\{)|\\[()\[\],;!]|[*_$\\{}`]|(?<!\w)['\"]|['\"](?!\w)")
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
    truth = readable(str(ground_truth)).strip().strip("().").upper()
    if len(truth) != 1 or truth not in options.letters:
        raise ValueError(f"the ground truth {ground_truth!r:.60} is none of the letters {options.letters}")
    answer = chosen(answer_text(response, options), options.letters)
    return {"score": float(answer == truth), "extracted": answer}


def chosen(response: str, letters: str) -> str | None:
    """The letter that a response finally chooses, or None."""
    patterns = _patterns(letters)
    tail = response[-TAIL:]
    begin, part = _framed(response)
    after = _undressed(tail[max(0, begin - len(response) + len(tail)) :])
    marks = [match for match in patterns.marked.finditer(after) if not denied(after, match.start())]
    if marks:
        return _single(marks[-1], patterns)
    if part is not None:
        return _single(patterns.alone.match(_undressed(part).strip()), patterns)
    text = _undressed(tail).rstrip()
    said = [match for pattern in (patterns.named, patterns.judged) for match in pattern.finditer(text)]
    said = [each for each in said if not patterns.rejected.match(text, each.end()) and not denied(text, each.start())]
    if said:
        return _single(max(said, key=lambda match: match.end()), patterns)
    *before, last = text.rsplit("\n", 2)[-2:]
    is_list = before and patterns.item.match(before[0].strip())
    return None if is_list else _single(patterns.alone.match(last.strip()), patterns)


def _framed(response: str) -> tuple[int, str | None]:
    """The end and the content of the last box or ``<answer>…</answer>``, whichever is later; 0 and None without one."""
    found = [(end, boxed_answer(response) or "") for _, end, _ in last_boxes(response, most=1)]
    if (answer := last_answer(response)) is not None:
        found.append((response.rindex("</answer>"), answer))
    return max(found, default=(0, None))


def _undressed(text: str) -> str:
    return _DRESS.sub("", text)


class _Patterns(NamedTuple):
    alone: re.Pattern[str]
    marked: re.Pattern[str]
    named: re.Pattern[str]
    judged: re.Pattern[str]
    rejected: re.Pattern[str]
    item: re.Pattern[str]
    another: re.Pattern[str]


def _single(match: re.Match[str] | None, patterns: _Patterns) -> str | None:
    """The letter of a match, unless another letter or a doubt stands beside it."""
    if match is None or patterns.another.match(match.string, match.end("letter")):
        return None
    before = match.string[: match.start("letter")].rstrip("([ \t")
    return None if re.search(r"\b[A-Z]\W{0,2}\s*(?:,|/|&|\bor|\band|\bvs\.?)$", before) else match["letter"].upper()


@lru_cache(maxsize=16)
def _patterns(letters: str) -> _Patterns:
    """The patterns of a choice; a small letter counts only if a bracket, a sign or the end follows it."""
    word = r"(?!\s+(?!(?:because|since|as|is|for|with|and|or|which)\b)[a-z])" if {*letters} & {*"AI"} else ""
    capital = rf"(?:[AI]{word}|[{letters.replace('A', '').replace('I', '') or letters}])"
    letter = rf"{capital}(?![A-Za-z0-9'’])|[{letters.lower()}](?=[)\].:,;?]|\s*$|\s*\n)"
    one = rf"[(\[]?(?P<letter>{letter})"
    option = r"[\s:]*(?:(?i:the|option|choice|letter|answer)\s+)*"
    phrase = r"(?:\s*[:=]|\s+-|\s+(?i:is|should be|must be|would be)\b:?|[ \t]*\n)"
    marked = rf"(?:(?i:\banswer\b){phrase}|答案\s*[是为:]?|故?选择?\s*:?|####){option}{one}"
    verbs = ["option", "choice", "choose", "chose", "pick", "select", "leaves", "therefore", "thus", "hence", "so"]
    verb = rf"(?i:{'|'.join([*verbs, 'go(?:ing)? with', 'it is', 'must be'])}|it's)\b"
    return _Patterns(
        re.compile(rf"(?:(?i:option|choice|answer)\s*:?\s*)?{one}(?:[)\].:,;?]|\s*$|\s+(?=(?i:or|and)\b))"),
        re.compile(marked),
        re.compile(rf"(?i:\banswer\b(?:\s+is)?|\b{verb}(?:\s+is)?)[,:]?{option}{one}"),
        re.compile(
            rf"{one}[)\]]?\s+(?:is|must be|seems)\s+(?:indeed\s+)?(?:the\s+)?"
            r"(?:correct|right|true|best|answer)\b(?:\s+(?:answer|option|choice))?"
        ),
        re.compile(
            r"[)\]]?\s*(?:is|was|are|seems|looks|would|could|can|may|might|has|does)\b(?!\s+(?:the\s+)?(?:correct|right|best|true|answer)\b)"
        ),
        re.compile(rf"[(\[]?{capital}(?:[)\].:]|\s*$)"),
        re.compile(
            r"[)\]]?\s*(?:\?|\(?,?\s*(?:or|或)\s*(?:something|another|some|other|else|none|perhaps|maybe|possibly|都)"
            rf"|(?:[\s,;/|&+(]|[-=]+>|→|\b(?:or|and|vs)\b\.?|[或和与及者以])+(?i:option\s+)?[(\[]?(?:{letter})"
            r"(?!\s+(?:is|are|was)\s+(?:wrong|incorrect|not|false)\b))"
        ),
    )
