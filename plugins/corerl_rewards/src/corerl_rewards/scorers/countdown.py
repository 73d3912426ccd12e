"""Scorer of Countdown in TinyZero's format: reach a target with each of the given numbers used exactly once."""

import ast
import itertools
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from corerl_rewards.options import CountdownOptions
from corerl_rewards.scorers.characters import answer_text

LONGEST_EXPRESSION = 500
"""characters; also limits the nesting of parentheses and signs"""

_CHARACTERS = re.compile(r"[0-9.+\-*/() ]+")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_SIGNS = str.maketrans("×·÷", "**/")
_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_UNARY: dict[type[ast.unaryop], Callable[[Fraction], Fraction]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_DEFAULT = CountdownOptions()


def countdown(
    response: str,
    ground_truth: Any,
    data_source: str,
    extra_info: Mapping[str, Any],
    options: CountdownOptions = _DEFAULT,
) -> Mapping[str, Any]:
    """1.0 if the last ``<answer>expression</answer>`` gives the target, computed in fractions.

    Args:
        ground_truth: ``{"numbers": [number, …], "target": number}``, read exactly.

    The expression contains + - * / and parentheses, and each of the numbers exactly once. Any other text between the
    tags scores ``options.format_score``; a response without tags scores 0.0.
    """
    try:
        numbers, target = sorted(map(_exact, ground_truth["numbers"])), _exact(ground_truth["target"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the ground truth must be {{numbers, target}}, not {ground_truth!r:.100}") from error
    expression = last_answer(answer_text(response, options))
    if expression is None:
        return {"score": 0.0, "extracted": None}
    return {"score": 1.0 if _value(expression, numbers) == target else options.format_score, "extracted": expression}


def last_answer(text: str) -> str | None:
    """The text between the last ``<answer>`` and ``</answer>``, or None."""
    head, end, _ = text.rpartition("</answer>")
    _, start, answer = head.rpartition("<answer>")
    return answer.strip() if start and end else None


def _exact(number: Any) -> Fraction:
    """A number of the ground truth, as written: 5.5 is 11/2."""
    if isinstance(number, bool):
        raise TypeError("a truth value is no number")
    return Fraction(str(number).strip())


def _value(expression: str, numbers: list[Fraction]) -> Fraction | None:
    """The value of an expression over exactly ``numbers`` (sorted), or None if it is invalid."""
    expression = " ".join(expression.split()).translate(_SIGNS)
    if len(expression) > LONGEST_EXPRESSION or not _CHARACTERS.fullmatch(expression):
        return None
    written = _NUMBER.findall(expression)
    used = [Fraction(number) for number in written]
    if sorted(used) != numbers or any(
        "." in text and number.denominator == 1 for text, number in zip(written, used, strict=True)
    ):
        return None  # 35.0 is not written as given
    places = itertools.count()
    try:
        tree = ast.parse(_NUMBER.sub(lambda _: str(next(places)), expression), mode="eval").body
        return _evaluate(tree, used)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _evaluate(node: ast.expr, used: list[Fraction]) -> Fraction:
    """The value of a tree whose constants are places in ``used``."""
    match node:
        case ast.Constant(value=int(place)):
            return used[place]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_evaluate(left, used), _evaluate(right, used))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_evaluate(operand, used))
    raise ValueError(f"{type(node).__name__} is not allowed")
