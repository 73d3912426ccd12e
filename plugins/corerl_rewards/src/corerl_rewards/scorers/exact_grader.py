r"""math-verify's comparison of expressions, with exact numbers.

math-verify rounds decimals to six places and drops differences below 1e-15, so for it ``10^{-40}`` equals
``6.63 \times 10^{-34}`` and ``\frac{1}{20!}`` equals ``\frac{1}{19!}``, also in sets, tuples, intervals and matrices.
Here a decimal is a fraction, and two numbers are equal only if their difference has no correct digit among the first
:data:`DIGITS`. Expressions with variables are first compared at one point, which refutes most wrong answers without
sympy's ``simplify``. ``i`` is the imaginary unit.

The functions are replaced in a copy of math-verify's module: other users of math-verify in this process keep theirs.
"""

import importlib.util
from typing import Any

from sympy import (
    Abs,
    Basic,
    Float,
    I,
    Integral,
    Limit,
    Product,
    Rational,
    Sum,
    Symbol,
    UnevaluatedExpr,
    expand,
    simplify,
)
from sympy.matrices import MatrixBase

DIGITS = 400

_UNIT = {Symbol("i", real=False): I}
_HUNDREDTH = UnevaluatedExpr(Rational(1, 100))
_POINTS = [Rational(numerator, 1009) for numerator in (1531, 2741, 3613, 4451, 5693, 6211, 7577, 8699)]


def load() -> Any:
    """A copy of the module ``math_verify.grader`` that compares numbers exactly."""
    spec = importlib.util.find_spec("math_verify.grader")
    assert spec is not None and spec.loader is not None
    grader: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(grader)
    grader.sympy_numeric_eq, grader.sympy_symbolic_eq = same_numbers, same_formulas
    return grader


def with_imaginary_unit(expression: Any) -> Any:
    """The expression with the number i in place of the symbol that math-verify reads."""
    return expression.xreplace(_UNIT) if isinstance(expression, Basic | MatrixBase) else expression


def same_numbers(one: Any, other: Any, *_: Any) -> bool:
    """Whether two numbers, or matrices of numbers, are equal; 50 and 50% are, too."""
    pairs = _pairs(one, other)
    return pairs is not None and (
        all(_same_values(*pair) for pair in pairs) or _same_values(_of_hundred(one), _of_hundred(other))
    )


def same_formulas(one: Any, other: Any) -> bool:
    """Whether two expressions with variables, or matrices of them, are equal."""
    pairs = _pairs(one, other)
    return pairs is not None and all(_same_values(*pair) or _same_formulas(*pair) for pair in pairs)


def _pairs(one: Any, other: Any) -> list[tuple[Any, Any]] | None:
    """The two expressions, or the elements of two matrices; None for different shapes."""
    one, other = exact(one), exact(other)
    if isinstance(one, MatrixBase) and isinstance(other, MatrixBase):
        return list(zip(one.flat(), other.flat(), strict=True)) if one.shape == other.shape else None
    return None if isinstance(one, MatrixBase) or isinstance(other, MatrixBase) else [(one, other)]


def _same_formulas(one: Any, other: Any) -> bool:
    difference = exact(one - other)
    if _has_digits(difference.subs(dict(zip(sorted(difference.free_symbols, key=str), _POINTS, strict=False)))):
        return False
    return bool(expand(difference) == 0 or simplify(difference).is_zero)


def _same_values(one: Any, other: Any) -> bool:
    """Whether two numbers are equal; False for an expression with variables."""
    difference = exact(one) - exact(other)
    return not difference.free_symbols and _has_digits(difference) is False


def exact(expression: Any) -> Any:
    """The computed value of an expression, with decimals as fractions."""
    decimals = {decimal: Rational(str(decimal)) for decimal in expression.atoms(Float)}
    return expression.xreplace(decimals).doit()


def _has_digits(number: Any) -> bool | None:
    """Whether a number is not 0, as far as its digits tell; None for anything else."""
    if number.is_Rational:
        return bool(number != 0)
    if number.free_symbols or number.has(Integral, Limit, Product, Sum):
        return None
    value = Abs(number).evalf(15, maxn=DIGITS)
    return value._prec > 1 if isinstance(value, Float) else None


def _of_hundred(expression: Any) -> Any:
    """The 50 of 50%."""
    return expression.args[0] if expression.is_Mul and expression.args[1:] == (_HUNDREDTH,) else expression
