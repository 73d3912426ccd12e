"""The arithmetic of ``$((…))``, ``((…))``, ``let`` and indices: integers of 64 bits."""

import re
from collections.abc import Callable
from typing import Protocol

_TOKEN = re.compile(
    r"\s*(0[xX][0-9a-fA-F]+|\d{1,2}#\w+|\d+(?:\.\d+)?|[A-Za-z_]\w*(?:\[[^]]*\])?"
    r"|\*\*|\+\+|--|<<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%<>=!~&|^?:(),])"
)
_LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<=", ">=", "<", ">"), ("<<", ">>"), ("+", "-"))
_ASSIGNMENTS = ("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^=")
_DEEPEST = 20


class NoNumberError(ValueError):
    """The value is not known, or the text is no arithmetic."""


class Names(Protocol):
    """The variables that an expression reads and sets."""

    def read(self, name: str) -> str:
        """The text of a variable or of an entry of an array.

        Raises:
            NoNumberError: it is set nowhere.
        """
        ...

    def write(self, name: str, value: str) -> None: ...


def evaluate(expression: str, names: Names, depth: int = 0) -> int:
    """The value of an expression whose ``$NAME`` are replaced; an empty one is 0.

    Raises:
        NoNumberError: it is no arithmetic, or a variable has no number.
    """
    if depth > _DEEPEST:
        raise NoNumberError(expression)
    words, at = list[str](), 0
    while expression[at:].strip():
        match = _TOKEN.match(expression, at)
        if not match:
            raise NoNumberError(expression)
        words.append(match[1])
        at = match.end()
    if not words:
        return 0
    reader = _Expression(words, names, depth)
    value = reader.comma(True)
    if reader.at < len(words):
        raise NoNumberError(expression)
    return value


class _Expression:
    """Reads words; an operand that is not ``live`` (behind ``0 &&``) is not evaluated."""

    def __init__(self, words: list[str], names: Names, depth: int) -> None:
        self.words, self.names, self.depth = words, names, depth
        self.at = 0

    def comma(self, live: bool) -> int:
        value = self._assigned(live)
        while self._taken(","):
            value = self._assigned(live)
        return value

    def _assigned(self, live: bool) -> int:
        name = self._peek()
        operator = self.words[self.at + 1] if self.at + 1 < len(self.words) else ""
        if not _is_name(name) or operator not in _ASSIGNMENTS:
            return self._chosen(live)
        self.at += 2
        value = self._assigned(live)
        if not live:
            return 0
        return self._set(name, value if operator == "=" else _of(operator[:-1], self._present(name), value))

    def _chosen(self, live: bool) -> int:
        held = self._level(0, live)
        if not self._taken("?"):
            return held
        first = self.comma(live and bool(held))
        self._expect(":")
        second = self._chosen(live and not held)
        return first if held else second

    def _level(self, level: int, live: bool) -> int:
        if level == len(_LEVELS):
            return self._product(live)
        value = self._level(level + 1, live)
        while self._peek() in _LEVELS[level]:
            operator = self._take()
            needed = live and (bool(value) if operator == "&&" else not value if operator == "||" else True)
            other = self._level(level + 1, needed)
            value = _of(operator, value, other) if live else 0
        return value

    def _product(self, live: bool) -> int:
        value = self._power(live)
        while self._peek() in ("*", "/", "%"):
            operator = self._take()
            other = self._power(live)
            value = _of(operator, value, other) if live else 0
        return value

    def _power(self, live: bool) -> int:
        value = self._sign(live)
        if not self._taken("**"):
            return value
        return _of("**", value, self._power(live)) if live else 0

    def _sign(self, live: bool) -> int:
        word = self._take()
        match word:
            case "!":
                return int(not self._sign(live))
            case "~":
                return ~self._sign(live)
            case "-":
                return -self._sign(live)
            case "+":
                return self._sign(live)
            case "++" | "--":
                name, step = self._take(), 1 if word == "++" else -1
                return self._set(name, self._present(name) + step) if live else 0
            case "(":
                value = self.comma(live)
                self._expect(")")
                return value
        return self._operand(word, live)

    def _operand(self, word: str, live: bool) -> int:
        if not _is_name(word):
            return _integer(word)
        if self._peek() in ("++", "--"):
            step = 1 if self._take() == "++" else -1
            before = self._present(word) if live else 0
            if live:
                self._set(word, before + step)
            return before
        return evaluate(self.names.read(word), self.names, self.depth + 1) if live else 0

    def _present(self, name: str) -> int:
        """The value of a variable that is changed; one that is set nowhere is 0."""
        try:
            written = self.names.read(name)
        except NoNumberError:
            return 0
        return evaluate(written, self.names, self.depth + 1)

    def _set(self, name: str, value: int) -> int:
        if not _is_name(name):
            raise NoNumberError(name)
        self.names.write(name, str(value))
        return value

    def _peek(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def _take(self) -> str:
        word = self._peek()
        self.at += 1
        return word

    def _taken(self, word: str) -> bool:
        if self._peek() != word:
            return False
        self.at += 1
        return True

    def _expect(self, word: str) -> None:
        if not self._taken(word):
            raise NoNumberError(self._peek())


def _is_name(word: str) -> bool:
    return bool(word) and (word[0].isalpha() or word[0] == "_")


def _integer(word: str) -> int:
    try:
        if word[:2] in ("0x", "0X"):
            return int(word, 16)
        base, sign, digits = word.partition("#")
        if sign:
            return int(digits, int(base))
        return int(word, 8 if len(word) > 1 and word.startswith("0") else 10)
    except ValueError:
        raise NoNumberError(word) from None


def _divided(a: int, b: int) -> int:
    """Towards 0."""
    if not b:
        raise NoNumberError("division by 0")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "||": lambda a, b: int(bool(a or b)),
    "&&": lambda a, b: int(bool(a and b)),
    "|": int.__or__,
    "^": int.__xor__,
    "&": int.__and__,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<<": lambda a, b: a << (b & 63),
    ">>": lambda a, b: a >> (b & 63),
    "+": int.__add__,
    "-": int.__sub__,
    "*": int.__mul__,
    "/": _divided,
    "%": lambda a, b: a - b * _divided(a, b),
    "**": lambda a, b: pow(a, max(0, b), 2**64),
}


def _of(operator: str, a: int, b: int) -> int:
    """The result, in 64 bits with a sign."""
    return (_OPERATIONS[operator](a, b) + 2**63) % 2**64 - 2**63
