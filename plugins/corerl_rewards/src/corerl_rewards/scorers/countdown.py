"""Scorer of Countdown in TinyZero's format: reach a target with each of the given numbers used exactly once."""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from corerl_rewards.answers import answer_part
from corerl_rewards.options import CountdownOptions

LONGEST_EXPRESSION = 500
"""characters; also limits the nesting of parentheses and signs"""

_CHARACTERS = re.compile(r"[0-9+\-*/() ]+")
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
        ground_truth: ``{"numbers": [int, …], "target": int}``.

    The expression contains + - * / and parentheses, and each of the numbers exactly once. Any other text between the
    tags scores ``options.format_score``; a response without tags scores 0.0.
    """
    try:
        numbers, target = sorted(int(number) for number in ground_truth["numbers"]), int(ground_truth["target"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the ground truth must be {{numbers, target}}, not {ground_truth!r:.100}") from error
    expression = last_answer(answer_part(response, options))
    if expression is None:
        return {"score": 0.0, "extracted": None}
    return {"score": 1.0 if _value(expression, numbers) == target else options.format_score, "extracted": expression}


def last_answer(text: str) -> str | None:
    """The text between the last ``<answer>`` and ``</answer>``, or None."""
    head, end, _ = text.rpartition("</answer>")
    _, start, answer = head.rpartition("<answer>")
    return answer.strip() if start and end else None


def _value(expression: str, numbers: list[int]) -> Fraction | None:
    """The value of an expression over exactly ``numbers`` (sorted), or None if it is invalid."""
    expression = " ".join(expression.split())
    if len(expression) > LONGEST_EXPRESSION or not _CHARACTERS.fullmatch(expression):
        return None
    try:
        tree = ast.parse(expression, mode="eval").body
        used = sorted(node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))  # type: ignore[type-var]
        return _evaluate(tree) if used == numbers else None
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _evaluate(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int(value)):
            return Fraction(value)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_evaluate(left), _evaluate(right))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_evaluate(operand))
    raise ValueError(f"{type(node).__name__} is not allowed")
