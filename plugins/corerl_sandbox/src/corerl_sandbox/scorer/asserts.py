"""Assert statements in two halves: the function calls run beside the program, the comparison in this process.

``assert f(1, 2) == 3`` becomes the expression ``f(1, 2)``, evaluated beside the program, and ``_ == 3``, evaluated here
on a copy of the value in plain types. The program sees neither the 3 nor the comparison, so an object that equals
everything, a patched builtin or an early exit gains nothing.

Split are ``==``, ``!=``, ``<``, ``in``, ``is`` and similar operators, ``not``, ``and``, arithmetic except powers,
displays, and calls of the functions below. Any other expression is a leaf, evaluated beside the program with its
literals.

Values may be of builtin types, Fraction, Decimal, date, time, datetime, timedelta, deque, Enum or dataclasses.
"""

import ast
import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

from corerl_sandbox.scorer.integers import any_integer, integer
from corerl_sandbox.scorer.values import CONSTRUCTORS, decoded, distinct

Leaves = list[ast.expr]
Step = tuple[str, str]
FAILURES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, MemoryError)
"""for a comparison with a value that the program made up"""

COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: lambda left, right: left is right if right is None or isinstance(right, bool) else left == right,
    ast.IsNot: lambda left, right: left is not right if right is None or isinstance(right, bool) else left != right,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "bool": bool,
    "float": float,
    "frozenset": lambda *values: frozenset(*map(distinct, values)),
    "int": int,
    "len": len,
    "list": list,
    "math.isclose": math.isclose,
    "max": max,
    "min": min,
    "round": round,
    "set": lambda *values: set(*map(distinct, values)),
    "sorted": sorted,
    "str": str,
    "sum": sum,
    "tuple": tuple,
}
ONE_ARGUMENT = ("round", "sum")
"""further arguments must be literals: a program's results must not decide the duration of these calls"""
CONSTANTS = {"math.pi": math.pi, "math.e": math.e, "math.inf": math.inf, "math.nan": math.nan}
NUMBERS = (int, float, complex, Fraction, Decimal)
_DISPLAYS = (ast.List, ast.Tuple, ast.Set, ast.Dict)
LITERAL = (ast.Constant, *_DISPLAYS, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)


@dataclass
class Assertion:
    """One test: ``steps`` for the program's process, and the number of replies that each check needs."""

    steps: list[Step] = field(default_factory=list)
    checks: list[tuple[int, Callable[[Sequence[Any]], Any]]] = field(default_factory=list)
    """index of the first reply of a leaf -> whether the values from that index on are as asserted"""

    def holds(self, replies: Sequence[str]) -> bool:
        """Whether the replies, one for each step, are those of a passing program."""
        if len(replies) < len(self.steps):
            return False
        try:
            with any_integer():
                values = [
                    None if kind == "run" else decoded(json.loads(reply, parse_int=integer))
                    for (kind, _), reply in zip(self.steps, replies, strict=False)
                ]
                return all(check(values[first:]) for first, check in self.checks)
        except FAILURES:
            return False


def split(test: str) -> Assertion:
    """The two halves of a test's statements; a statement without a half for this process runs beside the program."""
    with any_integer():
        return _split(test)


def _split(test: str) -> Assertion:
    try:
        statements = ast.parse(test).body
    except SyntaxError:
        return Assertion([("run", test)])
    made = Assertion()
    for statement in statements:
        leaves: Leaves = []
        first = len(made.steps)
        if isinstance(statement, ast.Assert):
            check = _part(statement.test, leaves)
            if not leaves:  # the function under test has the name of a builtin: sum(10, 15) of MBPP
                check = _part(statement.test, leaves, known={})
            made.checks.append((first, check))
            made.steps += [("value", ast.unparse(leaf)) for leaf in leaves]
        else:
            made.steps.append(("run", ast.unparse(statement)))
    made.steps.append(("run", "pass"))  # reached the end
    return made


def _part(
    node: ast.expr, leaves: Leaves, known: Mapping[str, Callable[..., Any]] = FUNCTIONS
) -> Callable[[Sequence[Any]], Any]:
    """A function that computes an expression from the values of its leaves; adds the leaves to ``leaves``.

    Args:
        known: functions that are called here, not beside the program.
    """
    if _is_literal(node):
        code = compile(ast.Expression(node), "test.py", "eval")
        return lambda _: eval(code, {"__builtins__": {}})
    if isinstance(node, ast.Compare) and all(type(each) in COMPARISONS for each in node.ops):
        compare = [COMPARISONS[type(each)] for each in node.ops]
        return _compared(compare, _parts([node.left, *node.comparators], leaves, known))
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return _all(_parts(node.values, leaves, known))
    if isinstance(node, ast.UnaryOp) and type(node.op) in UNARY:
        return _applied(UNARY[type(node.op)], [_part(node.operand, leaves, known)])
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _repeats(node):
        return _arithmetic(node, leaves, known)
    if isinstance(node, ast.List | ast.Tuple) and not any(isinstance(each, ast.Starred) for each in node.elts):
        return _displayed(list if isinstance(node, ast.List) else tuple, _parts(node.elts, leaves, known))
    return _call(node, leaves, known) or _leaf(node, leaves)


def _parts(
    nodes: Iterable[ast.expr], leaves: Leaves, known: Mapping[str, Callable[..., Any]]
) -> list[Callable[[Sequence[Any]], Any]]:
    return [_part(node, leaves, known) for node in nodes]


def _leaf(node: ast.expr, leaves: Leaves) -> Callable[[Sequence[Any]], Any]:
    number = len(leaves)
    leaves.append(node)
    return lambda given: given[number]


def _applied(function: Callable[..., Any], parts: Sequence[Callable[[Sequence[Any]], Any]]) -> Callable[..., Any]:
    return lambda given: function(*(part(given) for part in parts))


def _displayed(kind: Callable[[Any], Any], parts: Sequence[Callable[[Sequence[Any]], Any]]) -> Callable[..., Any]:
    return lambda given: kind([part(given) for part in parts])


def _all(parts: Sequence[Callable[[Sequence[Any]], Any]]) -> Callable[..., Any]:
    return lambda given: all(part(given) for part in parts)


def _compared(
    operators: Sequence[Callable[[Any, Any], Any]], parts: Sequence[Callable[[Sequence[Any]], Any]]
) -> Callable[..., Any]:
    def check(given: Sequence[Any]) -> bool:
        values = [part(given) for part in parts]
        return all(compare(*pair) for compare, *pair in zip(operators, values, values[1:], strict=False))

    return check


def _repeats(node: ast.BinOp) -> bool:
    """Whether ``*`` repeats a sequence or ``%`` formats a text; a program would decide the size of the result."""
    sequences = (ast.List, ast.Tuple, ast.JoinedStr)
    return not isinstance(node.op, ast.Add) and any(
        isinstance(each, sequences) or (isinstance(each, ast.Constant) and isinstance(each.value, str | bytes))
        for each in (node.left, node.right)
    )


def _arithmetic(
    node: ast.BinOp, leaves: Leaves, known: Mapping[str, Callable[..., Any]]
) -> Callable[[Sequence[Any]], Any]:
    compute, parts = ARITHMETIC[type(node.op)], _parts([node.left, node.right], leaves, known)

    def check(given: Sequence[Any]) -> Any:
        left, right = (part(given) for part in parts)
        if not (isinstance(left, NUMBERS) and isinstance(right, NUMBERS)) and compute is not operator.add:
            raise TypeError("arithmetic on a program's results needs numbers")
        return compute(left, right)

    return check


def _is_literal(node: ast.AST) -> bool:
    return all(isinstance(each, LITERAL) for each in ast.walk(node))


def _call(
    node: ast.expr, leaves: Leaves, known: Mapping[str, Callable[..., Any]]
) -> Callable[[Sequence[Any]], Any] | None:
    """A call of a function, or of one of its constants, that this process knows; None: neither."""
    if isinstance(node, ast.Attribute) and ast.unparse(node) in CONSTANTS:
        value = CONSTANTS[ast.unparse(node)]
        return lambda _: value
    if not isinstance(node, ast.Call) or any(isinstance(each, ast.Starred) for each in node.args):
        return None
    name = ast.unparse(node.func)
    if known and name in CONSTRUCTORS and all(map(_is_literal, [*node.args, *(each.value for each in node.keywords)])):
        return _constructed(CONSTRUCTORS[name], node, known)
    named = {each.arg: each.value for each in node.keywords if each.arg}
    further = [*(node.args[1:] if name in ONE_ARGUMENT else []), *named.values()]
    if name not in known or len(named) < len(node.keywords) or not all(map(_is_literal, further)):
        return None
    function, parts = known[name], _parts(node.args, leaves, known)
    keywords = {each: _part(value, [], known) for each, value in named.items()}
    return lambda given: function(*(part(given) for part in parts), **{each: keywords[each](()) for each in keywords})


def _constructed(
    kind: Callable[..., Any], node: ast.Call, known: Mapping[str, Callable[..., Any]]
) -> Callable[[Sequence[Any]], Any] | None:
    """A value of the standard library, made of literals; None for ``**`` arguments."""
    if not all(each.arg for each in node.keywords):
        return None
    arguments = [_part(each, [], known)(()) for each in node.args]
    named = {str(each.arg): _part(each.value, [], known)(()) for each in node.keywords}
    return lambda _: kind(*arguments, **named)
