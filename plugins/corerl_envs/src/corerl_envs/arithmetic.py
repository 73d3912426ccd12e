"""Arithmetic expressions, evaluated without executing code.

An expression is parsed as Python, and its tree is evaluated: numbers, ``+ - * / // % **``, brackets, ``abs``,
``round``, ``min`` and ``max``. Other expressions, and slow or large ones, are refused: an expression has at most 200
characters, and a number at most 4096 bits.
"""

import ast
import operator
from collections.abc import Callable

Number = int | float

MAX_LENGTH = 200
MAX_BITS = 4096

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def _round(number: Number, digits: Number = 0) -> Number:
    """Round to at most 100 digits: ``round(5, -10**9)`` would never finish."""
    if not isinstance(digits, int) or abs(digits) > 100:
        raise ValueError("round takes a number of digits from -100 to 100")
    return round(number, digits)


_FUNCTIONS: dict[str, Callable[..., Number]] = {"abs": abs, "round": _round, "min": min, "max": max}
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**", ",": "", "$": ""})


def evaluate(expression: str) -> Number:
    """The value of an expression; ``×``, ``÷``, ``−`` and ``^`` are accepted.

    Commas are separators of thousands, except in a call such as ``max(1, 2)``.

    Raises:
        ValueError: the text is no arithmetic, or its value is too large; the message names the error.
    """
    if len(expression) > MAX_LENGTH:
        raise ValueError(f"longer than {MAX_LENGTH} characters")
    signs = {**_SIGNS, ord(","): ","} if any(f"{name}(" in expression for name in _FUNCTIONS) else _SIGNS
    try:
        tree = ast.parse(expression.translate(signs).strip(), mode="eval")
        return _value(tree.body)
    except SyntaxError:
        raise ValueError("not an arithmetic expression") from None
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except (OverflowError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(f"cannot be worked out ({type(error).__name__})") from None


def shown(value: Number) -> str:
    """A number as a reader writes it: no ``.0``, and 12 significant digits for a number that is no integer."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return str(value) if isinstance(value, int) else f"{value:.12g}"


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _checked(number)
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            return _value(operand) * (-1 if isinstance(sign, ast.USub) else 1)
        case ast.BinOp(op=sign, left=left, right=right) if type(sign) in _BINARY:
            return _checked(_operate(type(sign), _value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _checked(_FUNCTIONS[name](*map(_value, arguments)))
        case _:
            raise ValueError("not an arithmetic expression")


def _operate(sign: type[ast.operator], left: Number, right: Number) -> Number:
    if sign is ast.Pow and isinstance(left, int) and isinstance(right, int):
        if right < 0:
            return float(left) ** right
        if abs(left) > 1 and left.bit_length() * right > MAX_BITS:
            raise ValueError(f"more than {MAX_BITS} bits")
    return _BINARY[sign](left, right)


def _checked(value: Number) -> Number:
    """``value``, if it can be written as a number."""
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError(f"more than {MAX_BITS} bits")
    if not isinstance(value, int | float) or (isinstance(value, float) and value - value != 0):
        raise ValueError("not a real number")
    return value
