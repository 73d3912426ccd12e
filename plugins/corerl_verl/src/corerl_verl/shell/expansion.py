"""Expansion of shell words: variables, arrays, defaults, arithmetic, quotes."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from corerl.errors import ConfigError
from corerl_verl.shell.arithmetic import NoNumberError, evaluate
from corerl_verl.shell.braces import braced
from corerl_verl.shell.modifiers import modified, portion
from corerl_verl.shell.printed import escaped
from corerl_verl.shell.tokens import Token, end_of, end_of_quote, tokens

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[([^]]*)\])?(\+?)=(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*|[@*#?$!0-9-]")
_ARGUMENTS = re.compile(r"\$@|\$\{(@|\w+\[@\])[^}]*\}")
_BRACED = re.compile(r"(#?)(!?)([A-Za-z_]\w*|[@*#?]|\d+)(\[[^]]*\])?(.*)", re.DOTALL)
_ENTRY = re.compile(r"\[([^]]+)\]=(.*)", re.DOTALL)
_QUOTED = re.compile(r""":?[-=+]("[^"]*"|'[^']*')""")
"""a default that is one word"""
_LARGEST = 1_000_000
_MOST_ENTRIES = 10_000
_SPACES = re.compile(r"[ \t\n]+")
_SPACES_OUTSIDE = re.compile(r"[ \t\n]+(?![^()]*\))")
"""that are not in the brackets of a command whose output is not known"""


@dataclass
class Variables:
    """The state of a shell.

    Attributes:
        scalars, arrays: by name; the entries of an array by their keys.
        associative: names of arrays whose keys are texts.
        integers: names whose values are arithmetic.
        exported: names that a shell within the script has, too; ``exports_all``: all.
        functions: their commands by name.
        environment: of the process; used for names that the script does not set.
        arguments: ``$1``, …
        unset: names that were read but are set nowhere; their place holds ``$NAME``.
    """

    environment: Mapping[str, str]
    arguments: list[str] = field(default_factory=list)
    scalars: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, dict[str, str]] = field(default_factory=dict)
    associative: set[str] = field(default_factory=set)
    functions: dict[str, list[Token]] = field(default_factory=dict)
    unset: set[str] = field(default_factory=set)
    integers: set[str] = field(default_factory=set)
    exported: set[str] = field(default_factory=set)
    exports_all: bool = False

    def get(self, name: str) -> str | None:
        """The value of a scalar, of the first entry of an array, or of an argument."""
        if re.fullmatch("[0-9]{1,9}", name):
            return "run.sh" if name == "0" else next(iter(self.arguments[int(name) - 1 : int(name)]), None)
        if name == "#":
            return str(len(self.arguments))
        if name in ("?", "$", "!", "-"):
            return "0"
        if name in self.arrays:
            return self.arrays[name].get("0", None if name in self.associative else "")
        return self.scalars.get(name, self.environment.get(name))

    def listed(self, name: str) -> list[str]:
        """The entries of an array; a scalar is one."""
        if name in ("@", "*"):
            return self.arguments
        if name in self.arrays:
            return [self.arrays[name][key] for key in self.keys(name)]
        value = self.get(name)
        return [] if value is None else [value]

    def keys(self, name: str) -> list[str]:
        """Those of an array, in order; a scalar has "0"."""
        if name not in self.arrays:
            return [] if self.get(name) is None else ["0"]
        own = self.arrays[name]
        return [*own] if name in self.associative else sorted(own, key=int)

    def entry(self, name: str, index: str) -> str | None:
        """That of an array at a raw index; None: there is none."""
        key = self._key(name, index)
        return self.get(name) if key == "0" else self.arrays.get(name, {}).get(key)

    def assign(self, word: str) -> None:
        """Carry out ``NAME=value``, ``NAME+=value``, ``NAME=(…)``, ``NAME[index]=value``."""
        match = ASSIGNMENT.fullmatch(word)
        assert match
        name, has_index, index, adds, raw = match.groups()
        if raw.startswith("(") and raw.endswith(")"):
            self._fill(name, raw[1:-1], bool(adds))
            return
        value = text(raw, self)
        if name in self.integers and not has_index:
            number = arithmetic(f"{self.get(name) or 0} + ({value})" if adds else value or "0", self)
            value, adds = value if number is None else str(number), "" if number is not None else adds
        if len(value) > _LARGEST:
            raise ConfigError("", f"the script's variable {name} has more than {_LARGEST} characters")
        if not has_index and name not in self.arrays:
            self.scalars[name] = (self.get(name) or "" if adds else "") + value
            return
        key = self._key(name, index) if has_index else "0"
        own = self._array(name)
        own[key] = (own.get(key, "") if adds else "") + value

    def put(self, name: str, value: str) -> None:
        """Give a scalar, or an entry of an array, a text; a name that bash refuses gets none."""
        if re.fullmatch(r"[A-Za-z_]\w*(\[[^]]*\])?", name):
            self.assign(f"{name}={shlex.quote(value)}")

    def _array(self, name: str) -> dict[str, str]:
        """That of a name; a scalar becomes its first entry."""
        if name not in self.arrays:
            self.arrays[name] = {"0": self.scalars.pop(name)} if name in self.scalars else {}
        return self.arrays[name]

    def _fill(self, name: str, raw: str, adds: bool) -> None:
        own = dict(self._array(name)) if adds else {}
        place = 1 + max(map(int, own), default=-1) if name not in self.associative else 0
        for token in tokens(raw):
            keyed = _ENTRY.fullmatch(token.text)
            if keyed and name in self.associative:
                own[text(keyed[1], self)] = text(keyed[2], self)
            elif keyed:
                place = int(self._key(name, keyed[1]))
                own[str(place)] = text(keyed[2], self)
                place += 1
            elif not token.operator and not token.redirects:
                for each in expand(token.text, self):
                    own[str(place)] = each
                    place += 1
            if len(own) > _MOST_ENTRIES:
                raise ConfigError("", f"the script's array {name} has more than {_MOST_ENTRIES} entries")
        self.scalars.pop(name, None)
        self.arrays[name] = own

    def _key(self, name: str, index: str) -> str:
        """That of a raw index; a negative one counts from the end."""
        if name in self.associative:
            return text(index, self)
        place = arithmetic(index, self) or 0
        return str(place + 1 + max(map(int, self.arrays.get(name, {})), default=0) if place < 0 else place)

    def remove(self, name: str) -> None:
        """Carry out ``unset NAME``."""
        self.scalars.pop(name, None)
        self.arrays.pop(name, None)
        self.associative.discard(name)
        self.environment = {each: value for each, value in self.environment.items() if each != name}

    def restore(self, name: str, before: "Variables") -> None:
        """Give a name what it had before."""
        self.remove(name)
        self.environment = before.environment
        if name in before.scalars:
            self.scalars[name] = before.scalars[name]
        if name in before.arrays:
            self.arrays[name] = before.arrays[name]
        if name in before.associative:
            self.associative.add(name)

    @contextmanager
    def for_one_command(self, assignments: Sequence[str]) -> Iterator[None]:
        """Carry out the assignments before a command, and take them back after it."""
        before = self.copy() if assignments else self
        names = [re.split(r"\W", word, maxsplit=1)[0] for word in assignments]
        for word in assignments:
            self.assign(word)
        self.exported |= {*names}
        yield
        for name in names:
            self.restore(name, before)
        self.exported &= before.exported | (self.exported - {*names})

    def joined(self, entries: Sequence[str]) -> str:
        """``"${NAME[*]}"``: by the first character of IFS."""
        return self.scalars.get("IFS", " ")[:1].join(entries)

    def read(self, name: str) -> str:
        """As :class:`corerl_verl.shell.arithmetic.Names`."""
        own, bracket, index = name.partition("[")
        value = self.entry(own, index[:-1]) if bracket else self.get(own)
        if value is None:
            self.unset.add(own)
            raise NoNumberError(name)
        return value

    def write(self, name: str, value: str) -> None:
        """As :class:`corerl_verl.shell.arithmetic.Names`."""
        self.assign(f"{name}={value}")

    def copy(self) -> "Variables":
        """Those of a subshell; what it finds unset is known here."""
        arrays = {name: dict(own) for name, own in self.arrays.items()}
        own = self.environment, [*self.arguments], dict(self.scalars), arrays, set(self.associative)
        kinds = set(self.integers), set(self.exported), self.exports_all
        return Variables(*own, dict(self.functions), self.unset, *kinds)

    def child(self, arguments: list[str]) -> "Variables":
        """Those of a shell that the script starts."""
        seen = self.exports_all
        scalars = {name: value for name, value in self.scalars.items() if seen or name in self.exported}
        return Variables(self.environment, arguments, scalars, unset=self.unset, exported=set(self.exported))


def text(raw: str, variables: Variables) -> str:
    """One word without field splitting, as on the right of an assignment."""
    return " ".join(expand(raw, variables, split=False))


def expand(raw: str, variables: Variables, split: bool = True) -> list[str]:
    """The fields of a raw word."""
    words = braced(raw) if split and "{" in raw else [raw]
    return [each for word in words for each in _Expansion(variables, split).run(word)]


def document(raw: str, variables: Variables) -> str:
    """The text of a here-document with expansions."""
    joined = re.sub(r"\\(\\|\n)", lambda each: each[0] if each[1] == "\\" else "", raw)
    return _Expansion(variables, split=False).document(joined)


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

    def document(self, raw: str) -> str:
        """As within double quotes, which themselves are text."""
        self._parts(raw, quoted=True)
        return " ".join([*self.fields, self.current or ""])

    def _add(self, piece: str, quoted: bool) -> None:
        if quoted or not self.split:
            self.current = (self.current or "") + piece
            return
        spaces = _SPACES_OUTSIDE if "$(" in piece else _SPACES
        own = self.variables.scalars.get("IFS")
        if own is not None and own != " \t\n":
            spaces = re.compile(f"[{re.escape(own)}]" if own else r"(?!)")
        for index, part in enumerate(spaces.split(piece)):
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
            elif raw.startswith(("$'", '$"'), at) and not quoted:
                end = end_of_quote(raw, at + 1)
                if raw[at + 1] == "'":
                    self._literal(escaped(raw[at + 2 : end - 1]))
                    at = end
                else:
                    at += 1
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
            number = arithmetic(raw[at + 3 : end - 2], self.variables)
            self._add(raw[at:end] if number is None else str(number), quoted)
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
            own = self.variables.arguments
            self._list([self.variables.joined(own)] if quoted and match[0] == "*" else own, quoted)
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
        match = _BRACED.fullmatch(inside)
        if not match:
            self._literal(f"${{{inside}}}")
            return
        size, points, name, index, rest = match.groups()
        if index in ("[@]", "[*]") or name in ("@", "*"):
            entries = self.variables.keys(name) if points else self.variables.listed(name)
            if size:
                self._add(str(len(entries)), quoted)
                return
            entries = self._entries(entries, rest, name in ("@", "*"))
            joins = quoted and "*" in (name, (index or "")[1:2])
            self._list([self.variables.joined(entries)] if joins else entries, quoted)
            return
        value = self.variables.entry(name, index[1:-1]) if index else self.variables.get(name)
        if points and value is not None:
            name, value = value, self.variables.get(value)
        if size:
            self._add(str(len(value or "")), quoted)
        else:
            whole = bool(_QUOTED.fullmatch(rest)) and (not value or "+" in rest[:2])
            self._add(self._modified(name, value, rest), quoted or whole)

    def _entries(self, entries: list[str], rest: str, are_arguments: bool) -> list[str]:
        """With what follows ``[@]``; a part of the arguments counts from 1."""
        if not rest or rest[:2] in (":-", ":=", ":?", ":+") or rest[0] in "-=?+":
            return entries
        found = portion(["", *entries] if are_arguments else entries, rest, lambda raw: arithmetic(raw, self.variables))
        return [self._changed(each, rest) for each in entries] if found is None else found

    def _modified(self, name: str, value: str | None, rest: str) -> str:
        if not rest:
            return self._value(name) if value is None else value
        if rest[:2] in (":-", ":=", ":?", ":+") or rest[0] in "-=?+":
            width = 2 if rest[0] == ":" else 1
            missing = value is None or (width == 2 and not value)
            return self._default(name, value or "", missing, rest[width - 1], rest[width:])
        if value is None:
            return self._value(name)
        return self._changed(value, rest)

    def _changed(self, value: str, rest: str) -> str:
        variables = self.variables
        return modified(value, rest, lambda raw: text(raw, variables), lambda raw: arithmetic(raw, variables))

    def _default(self, name: str, value: str, missing: bool, kind: str, word: str) -> str:
        if kind == "+":
            return "" if missing else text(word, self.variables)
        if not missing:
            return value
        if kind == "?":
            self.variables.unset.add(name)
            return f"${name}"
        value = text(word, self.variables)
        if kind == "=":
            self.variables.scalars[name] = value
        return value

    def _command(self, command: str) -> str:
        from corerl_verl.shell.run import output

        return output(command, self.variables)


def arithmetic(expression: str, variables: Variables) -> int | None:
    """The value of ``$((expression))``; None: it is not known, or no arithmetic."""
    try:
        return evaluate(text(expression, variables), variables)
    except NoNumberError:
        return None
