r"""Whether an answer contains a number too large to compute, such as ``10^{10^{10}}`` or ``100!!!``.

The arithmetic of the answer is computed with twenty digits and an exponent of any size; every sign outside arithmetic
counts as 1. This takes microseconds; exact integers would take hours.
"""

import contextlib
import math
import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal

MOST_DIGITS = 1_000_000

_TOKEN = re.compile(r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+|\\[A-Za-z]+|\\.|\S", re.DOTALL)
_CONTEXT = Context(prec=20, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
_ONE, _INFINITY = Decimal(1), Decimal("Infinity")
_OPEN = {"(": ")", "{": "}", "[": "]"}
_TIMES = ("*", "\\cdot", "\\times")
_ENDS = ("+", "-", "/", ")", "}", "]", ",", ";", "=", "&", "<", ">", "|", "\\div", "\\\\", "\\}")


def enormous(latex: str) -> bool:
    r"""Whether an intermediate number has more than :data:`MOST_DIGITS` digits before or after the point.

    >>> enormous(r"10^{10^{10}}"), enormous(r"2^{1000000} - x^{10^{10}}"), enormous(r"\left(\frac12\right)^{9^{9}}")
    (True, False, True)
    """
    if not ("^" in latex or "!" in latex or "binom" in latex):
        return False
    reader = _Reader(latex.replace("\\left", "").replace("\\right", ""))
    with contextlib.suppress(RecursionError):  # hundreds of nested brackets are no number
        while reader.tokens:
            reader.sum()
            reader.take()  # a bracket without its opening one
    return reader.enormous


class _Reader:
    """Reads tokens from the end of ``tokens``; accepts any text, formula or not."""

    def __init__(self, latex: str) -> None:
        self.tokens = _TOKEN.findall(latex)[::-1]
        self.enormous = False

    @property
    def next(self) -> str:
        return self.tokens[-1] if self.tokens else ""

    def take(self) -> str:
        return self.tokens.pop() if self.tokens else ""

    def _noted(self, value: Decimal) -> Decimal:
        if value.is_finite() and abs(value.adjusted() if value else 0) <= MOST_DIGITS:
            return value
        self.enormous = True
        return _INFINITY

    def sum(self) -> Decimal:
        total = self._product()
        while self.next and self.next not in (")", "}", "]"):
            minus = self.take() == "-"
            other = self._product()
            total = _CONTEXT.subtract(total, other) if minus else _CONTEXT.add(total, other)
        return total

    def _product(self) -> Decimal:
        value = _ONE if self.next != "-" else Decimal(0)
        while self.next and (self.next not in _ENDS or self.next in ("/", "\\div")):
            if self.take_any(("/", "\\div")):
                value = _CONTEXT.divide(value, self._power())
            else:
                self.take_any(_TIMES)
                value = self._noted(_CONTEXT.multiply(value, self._power()))
        return value

    def take_any(self, tokens: tuple[str, ...]) -> bool:
        return self.next in tokens and bool(self.take())

    def _power(self) -> Decimal:
        value = self._atom()
        while self.next in ("^", "!", "_"):
            sign = self.take()
            if sign == "!":
                value = self._noted(_factorial(value))
            else:
                other = self._argument()
                value = self._noted(_CONTEXT.power(abs(value), other)) if sign == "^" else value
        return value

    def _atom(self) -> Decimal:
        token = self.take()
        if token in _OPEN:
            value = self.sum()
            self.take_any((_OPEN[token],))
            return value
        if token in ("\\frac", "\\dfrac", "\\tfrac", "\\cfrac"):
            top, bottom = self._argument(), self._argument()
            return _CONTEXT.divide(top, bottom)
        if token in ("\\binom", "\\dbinom", "\\tbinom"):
            return self._noted(_binomial(self._argument(), self._argument()))
        if token == "\\sqrt":
            return self._argument()
        return Decimal(token) if token[:1].isdigit() or (token[:1] == "." and len(token) > 1) else _ONE

    def _argument(self) -> Decimal:
        """A group, or without one a single sign, as in LaTeX; a minus is read together with its operand."""
        if self.take_any(("-",)):
            return -self._argument()
        token = self.next
        if token[:1].isdigit() and len(token) > 1:
            self.tokens[-1] = token[1:]
            return Decimal(token[0])
        return self._atom()


def _factorial(value: Decimal) -> Decimal:
    if not value.is_finite() or value > 10**15:
        return _INFINITY
    return _CONTEXT.power(Decimal(10), Decimal(math.lgamma(max(1.0, float(value) + 1)) / math.log(10)))


def _binomial(above: Decimal, below: Decimal) -> Decimal:
    if not 0 <= below <= above <= 10**15:
        return _ONE if above.is_finite() and below.is_finite() else _INFINITY
    n, k = float(above), float(below)
    logarithm = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return _CONTEXT.power(Decimal(10), Decimal(logarithm / math.log(10)))
