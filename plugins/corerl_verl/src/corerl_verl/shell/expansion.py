"""Expansion of shell words: variables, arrays, defaults, arithmetic, quotes."""

import ast
import fnmatch
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from corerl_verl.shell.tokens import end_of, tokens

_NAME = re.compile(r"[A-Za-z_]\w*|[@*#?$!0-9-]")
_ARGUMENTS = re.compile(r"\$@|\$\{(@|\w+\[@\])[^}]*\}")
_BRACED = re.compile(r"(#?)([A-Za-z_]\w*|[@*#?0-9]+)(\[[^]]*\])?(.*)", re.DOTALL)
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: int(a / b) if b else 0,
    ast.Mod: lambda a, b: a % b if b else 0,
    ast.LShift: lambda a, b: a << min(b, 64),
    ast.Pow: lambda a, b: a ** min(b, 64),
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


@dataclass
class Variables:
    """The state of a shell.

    Attributes:
        scalars, arrays: by name.
        environment: of the process; used for names that the script does not set.
        arguments: ``$1``, …
        unset: names that were read but are set nowhere; their place holds ``$NAME``.
    """

    environment: Mapping[str, str]
    arguments: list[str] = field(default_factory=list)
    scalars: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    unset: set[str] = field(default_factory=set)

    def get(self, name: str) -> str | None:
        """The value of a scalar, of the first entry of an array, or of an argument."""
        if name.isdigit():
            return "run.sh" if name == "0" else next(iter(self.arguments[int(name) - 1 : int(name)]), None)
        if name == "#":
            return str(len(self.arguments))
        if name in ("?", "$", "!", "-"):
            return "0"
        if name in self.arrays:
            return next(iter(self.arrays[name]), "")
        return self.scalars.get(name, self.environment.get(name))

    def listed(self, name: str) -> list[str]:
        """The entries of an array; a scalar is one."""
        if name in ("@", "*"):
            return self.arguments
        if name in self.arrays:
            return self.arrays[name]
        value = self.get(name)
        return [] if value is None else [value]

    def assign(self, word: str) -> None:
        """Carry out ``NAME=value``, ``NAME+=value``, ``NAME=(…)``."""
        name, _, raw = word.partition("=")
        adds = name.endswith("+")
        name = name.removesuffix("+").partition("[")[0]
        if raw.startswith("(") and raw.endswith(")"):
            entries = [each for token in tokens(raw[1:-1]) if not token.operator for each in expand(token.text, self)]
            self.arrays[name] = [*self.arrays.get(name, []), *entries] if adds else entries
            return
        value = text(raw, self)
        if adds and name in self.arrays:
            self.arrays[name].append(value)
        else:
            self.arrays.pop(name, None)
            self.scalars[name] = (self.scalars.get(name, "") if adds else "") + value


def text(raw: str, variables: Variables) -> str:
    """One word without field splitting, as on the right of an assignment."""
    return " ".join(expand(raw, variables, split=False))


def expand(raw: str, variables: Variables, split: bool = True) -> list[str]:
    """The fields of a raw word."""
    return _Expansion(variables, split).run(raw)


class _Expansion:
    def __init__(self, variables: Variables, split: bool) -> None:
        self.variables, self.split = variables, split
        self.fields: list[str] = []
        self.current: str | None = None

    def run(self, raw: str) -> list[str]:
        self._parts(raw, quoted=False)
        if self.current is not None:
            self.fields.append(self.current)
        return self.fields

    def _add(self, piece: str, quoted: bool) -> None:
        if quoted or not self.split:
            self.current = (self.current or "") + piece
            return
        for index, part in enumerate(re.split(r"\s+", piece)):
            if index and self.current is not None:
                self.fields.append(self.current)
                self.current = None
            if part:
                self.current = (self.current or "") + part

    def _parts(self, raw: str, quoted: bool) -> None:
        at = 0
        while at < len(raw):
            character = raw[at]
            if character == "\\" and at + 1 < len(raw):
                keeps = quoted and raw[at + 1] not in '$`"\\\n'
                self._literal(raw[at : at + 2] if keeps else raw[at + 1])
                at += 2
            elif character == "'" and not quoted:
                end = end_of(raw, at)
                self._literal(raw[at + 1 : end - 1])
                at = end
            elif character == '"' and not quoted:
                end = end_of(raw, at)
                if not _ARGUMENTS.fullmatch(raw[at + 1 : end - 1]):  # "$@" without arguments is no word
                    self._literal("")
                self._parts(raw[at + 1 : end - 1], quoted=True)
                at = end
            elif character == "`":
                end = end_of(raw, at)
                self._add(self._command(raw[at + 1 : end - 1]), quoted)
                at = end
            elif character == "$":
                at = self._dollar(raw, at, quoted)
            elif character == "~" and at == 0 and not quoted and raw[1:2] in ("", "/"):
                self._literal(self.variables.environment.get("HOME", "~"))
                at += 1
            else:
                self._literal(character)
                at += 1

    def _literal(self, piece: str) -> None:
        self.current = (self.current or "") + piece

    def _dollar(self, raw: str, at: int, quoted: bool) -> int:
        if raw.startswith("$((", at):
            end = end_of(raw, at + 1)
            self._add(str(arithmetic(raw[at + 3 : end - 2], self.variables)), quoted)
            return end
        if raw.startswith("$(", at):
            end = end_of(raw, at + 1)
            self._add(self._command(raw[at + 2 : end - 1]), quoted)
            return end
        if raw.startswith("${", at):
            end = end_of(raw, at + 1)
            self._braced(raw[at + 2 : end - 1], quoted)
            return end
        match = _NAME.match(raw, at + 1)
        if not match:
            self._literal("$")
            return at + 1
        if match[0] in ("@", "*"):
            self._list(self.variables.arguments, quoted)
        else:
            self._add(self._value(match[0]), quoted)
        return match.end()

    def _list(self, entries: list[str], quoted: bool) -> None:
        for index, entry in enumerate(entries):
            if index and self.current is not None:
                self.fields.append(self.current)
                self.current = None
            self._add(entry, quoted)

    def _value(self, name: str) -> str:
        value = self.variables.get(name)
        if value is None and not name.isdigit():
            self.variables.unset.add(name)
            return f"${name}"
        return value or ""

    def _braced(self, inside: str, quoted: bool) -> None:
        match = _BRACED.fullmatch(inside.removeprefix("!"))
        if not match:
            self._literal(f"${{{inside}}}")
            return
        size, name, index, rest = match.groups()
        if index in ("[@]", "[*]") or name in ("@", "*"):
            entries = self.variables.listed(name)
            if size:
                self._add(str(len(entries)), quoted)
            else:
                self._list(entries[_offset(rest, name) :], quoted)
            return
        value = self.variables.get(name)
        if index:
            place = arithmetic(index[1:-1], self.variables)
            value = next(iter(self.variables.listed(name)[place:][:1]), None)
        if size:
            self._add(str(len(value or "")), quoted)
        else:
            self._add(self._modified(name, value, rest), quoted)

    def _modified(self, name: str, value: str | None, rest: str) -> str:
        if not rest:
            return self._value(name) if value is None else value
        if rest[:2] in (":-", ":=", ":?", ":+") or rest[0] in "-=?+":
            width = 2 if rest[0] == ":" else 1
            missing = value is None or (width == 2 and not value)
            return self._default(name, value or "", missing, rest[width - 1], rest[width:])
        value = value or ""
        if rest[0] in "#%":
            return _trimmed(value, rest, self.variables)
        if rest[0] == "/":
            old, _, new = rest.lstrip("/").partition("/")
            return value.replace(text(old, self.variables), text(new, self.variables), -1 if rest[1:2] == "/" else 1)
        if rest[0] == ":":
            start, _, length = rest[1:].partition(":")
            begin = arithmetic(start, self.variables)
            return value[begin:][: arithmetic(length, self.variables) if length else None]
        return value.upper() if rest[0] == "^" else value.lower() if rest[0] == "," else value

    def _default(self, name: str, value: str, missing: bool, kind: str, word: str) -> str:
        if kind == "+":
            return "" if missing else text(word, self.variables)
        if not missing:
            return value
        if kind == "?":
            return self._value(name)
        value = text(word, self.variables)
        if kind == "=":
            self.variables.scalars[name] = value
        return value

    def _command(self, command: str) -> str:
        from corerl_verl.shell.run import output

        return output(command, self.variables)


def _offset(rest: str, name: str) -> int:
    """The first entry of ``${NAME[@]:offset}``; ``${@:2}`` counts from 1."""
    match = re.match(r":(\d+)", rest)
    return max(0, int(match[1]) - (name in ("@", "*"))) if match else 0


def _trimmed(value: str, rest: str, variables: Variables) -> str:
    longest = rest[:2] in ("##", "%%")
    pattern = text(rest[1 + longest :], variables)
    ends = range(len(value) + 1)
    if rest[0] == "#":
        for end in reversed(ends) if longest else ends:
            if fnmatch.fnmatchcase(value[:end], pattern):
                return value[end:]
    else:
        for start in ends if longest else reversed(ends):
            if fnmatch.fnmatchcase(value[start:], pattern):
                return value[:start]
    return value


def arithmetic(expression: str, variables: Variables) -> int:
    """The value of ``$((expression))``; 0 for what is no arithmetic."""
    plain = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\b\}?", lambda match: variables.get(match[1]) or "0", expression)
    plain = text(plain, variables).replace("/", "//").replace("////", "//")
    try:
        tree = ast.parse(plain.strip() or "0", mode="eval").body
    except (SyntaxError, ValueError):
        return 0
    return _number(tree)


def _number(node: ast.AST) -> int:
    match node:
        case ast.Constant(value=int() | float() as value):
            return int(value)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](_number(left), _number(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand)
        case ast.Compare(left=left, ops=[comparison], comparators=[right]) if type(comparison) in _COMPARISONS:
            return int(_COMPARISONS[type(comparison)](_number(left), _number(right)))
    return 0


def now(form: str) -> str:
    """``date +form``."""
    return datetime.now().astimezone().strftime(form)
