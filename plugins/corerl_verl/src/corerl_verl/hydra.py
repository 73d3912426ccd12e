"""Hydra's command line: options, overrides with ``+``, ``++`` and ``~``, groups, and values in Hydra's grammar."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml  # type: ignore[import-untyped]

from corerl.errors import ConfigError
from corerl_verl.shell.tokens import end_of

_OVERRIDE = re.compile(r"(~|\+\+|\+)?([\w$][\w$.@/*:-]*)(=(.*))?", re.DOTALL)
_OPTIONS = {"--config-name": "name", "-cn": "name", "--config-path": "path", "-cp": "path", "--config-dir": "path"}
_ALONE = ("--multirun", "-m", "--info", "--cfg", "-c", "--resolve", "--run", "-r", "--hydra-help")
_LONGEST = 400
"""characters of a number"""
_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?")
_SWEEP = re.compile(r"""[^\[{"'$\\]*[^\[{"'$\\(],[^"'$]*""")
_FUNCTION = re.compile(r"(choice|range|interval|glob)\(.*\)")
_WORDS = {"true": True, "false": False, "null": None, "nan": float("nan"), "inf": float("inf"), "": ""}


@dataclass
class Arguments:
    """The parsed command line.

    Attributes:
        values: key -> value, in order; the last of a key wins.
        deleted: keys of ``~key``.
        added: keys of ``+key`` and ``++key``, which verl's config need not have.
        groups: ``group@place`` or a key without a dot -> choice.
        name, path: of ``--config-name`` and ``--config-path``.
        ignored: arguments of another form.
    """

    values: dict[str, Any] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    added: set[str] = field(default_factory=set)
    groups: dict[str, Any] = field(default_factory=dict)
    name: str | None = None
    path: str | None = None
    ignored: list[str] = field(default_factory=list)


def parse(arguments: Sequence[str]) -> Arguments:
    """Parse Hydra's arguments.

    Raises:
        ConfigError: an argument is no override and no option, or a value has an open bracket or quote.
    """
    parsed, rest = Arguments(), list(arguments)
    while rest:
        argument = rest.pop(0)
        option, equals, value = argument.partition("=")
        if option in _OPTIONS:
            setattr(parsed, _OPTIONS[option], value if equals else rest.pop(0) if rest else None)
        elif option in _ALONE or option.startswith("hydra.") or option.startswith("hydra/"):
            parsed.ignored.append(argument)
        else:
            _override(argument, parsed)
    if parsed.name:
        parsed.name = parsed.name.removesuffix(".yaml")
    return parsed


def _override(argument: str, parsed: Arguments) -> None:
    match = _OVERRIDE.fullmatch(argument.removeprefix("--") if "=" in argument else argument)
    if not match or (match[3] is None and match[1] != "~"):
        raise ConfigError("", f"'{argument}' is not an override; one is written key=value, e.g. trainer.nnodes=1")
    sign, key, written = match[1], match[2], match[4]
    if sign == "~":
        parsed.deleted.append(key)
        parsed.values.pop(key, None)
        return
    result = value(written, key)
    if isinstance(result, str) and (_SWEEP.fullmatch(written) or _FUNCTION.fullmatch(written)):
        raise ConfigError(key, f"'{written}' is a sweep of Hydra: several trainings; write one value")
    if "@" in key or "/" in key or "." not in key:
        parsed.groups[key] = result
        return
    if sign:
        parsed.added.add(key)
    parsed.values.pop(key, None)
    parsed.values[key] = result


def value(text: str, key: str = "") -> Any:
    """A value in Hydra's grammar: quoted text, list, mapping, number, truth value, null, or plain text.

    >>> value("[console,'wandb']"), value("{a:1,b:{c:null}}"), value("1e-6"), value("0."), value("a: b")
    (['console', 'wandb'], {'a': 1, 'b': {'c': None}}, 1e-06, 0.0, 'a: b')

    Raises:
        ConfigError: a bracket or a quote has no end.
    """
    reader = _Values(text, key)
    try:
        result = reader.element("")
    except RecursionError:
        raise ConfigError(key, "has too many brackets within each other") from None
    if reader.at < len(text):
        return _scalar(text)
    return result


class _Values:
    def __init__(self, text: str, key: str) -> None:
        self.text, self.key, self.at = text, key, 0

    def element(self, ends: str) -> Any:
        self._spaces()
        start = self.text[self.at : self.at + 1]
        if start == "[":
            return self._list()
        if start == "{":
            return self._mapping()
        if start and start in "\"'":
            return self._quoted(start)
        return _scalar(self._plain(ends))

    def _spaces(self) -> None:
        while self.text[self.at : self.at + 1].isspace():
            self.at += 1

    def _plain(self, ends: str) -> str:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in ends:
            if self.text.startswith("${", self.at):
                end = self.text.find("}", self.at)
                self.at = len(self.text) if end < 0 else end + 1
            elif self.text.startswith("$(", self.at):  # the output of a command, not known
                self.at = end_of(self.text, self.at + 1)
            else:
                self.at += 2 if self.text[self.at] == "\\" and self.at + 1 < len(self.text) else 1
        return self.text[start : self.at].strip()

    def _quoted(self, quote: str) -> str:
        start = self.at
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != quote:
            self.at += 2 if self.text[self.at] == "\\" else 1
        if self.at >= len(self.text):
            self._refuse()
        self.at += 1
        inner = self.text[start + 1 : self.at - 1]
        return inner.replace(f"\\{quote}", quote)

    def _list(self) -> list[Any]:
        entries: list[Any] = []
        self.at += 1
        while True:
            self._spaces()
            if self.text[self.at : self.at + 1] == "]":
                self.at += 1
                return entries
            entries.append(self.element(",]"))
            self._separator("]")

    def _mapping(self) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        self.at += 1
        while True:
            self._spaces()
            if self.text[self.at : self.at + 1] == "}":
                self.at += 1
                return entries
            name = self.element(":,}")
            if self.text[self.at : self.at + 1] == ":":
                self.at += 1
                entries[str(name)] = self.element(",}")
            else:
                entries[str(name)] = None
            self._separator("}")

    def _separator(self, end: str) -> None:
        self._spaces()
        following = self.text[self.at : self.at + 1]
        if following == ",":
            self.at += 1
        elif following != end:
            self._refuse()

    def _refuse(self) -> None:
        raise ConfigError(self.key, f"'{self.text}' has an open quote or bracket")


def _is_number(text: str) -> bool:
    return len(text) <= _LONGEST and _NUMBER.fullmatch(text) is not None


def _scalar(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _is_number(text):
        plain = text.replace("_", "")
        return int(plain) if re.fullmatch(r"[-+]?\d+", plain) else float(plain)
    return text.replace("\\,", ",").replace("\\=", "=")


def from_yaml(content: str, file: str) -> dict[str, Any]:
    """The flat keys of a YAML config of verl, without ``defaults`` and ``hydra``.

    Raises:
        ConfigError: it is no mapping.
    """
    try:
        values = yaml.safe_load(content)
    except RecursionError:
        raise ConfigError("", f"{file}: has too many brackets within each other") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number with thousands of digits
        raise ConfigError("", f"{file}: not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(values, dict):
        raise ConfigError("", f"{file}: must be a mapping of sections such as 'data:'")
    return flat({name: section for name, section in values.items() if name not in ("defaults", "hydra")})


def flat(values: Any, path: str = "") -> dict[str, Any]:
    """Dotted key -> leaf; an empty mapping is a leaf."""
    if not isinstance(values, dict) or not values:
        return {path: _scalar(values) if isinstance(values, str) and _is_number(values) else values}
    return {
        key: leaf
        for name, value in values.items()
        if name != "_target_"
        for key, leaf in flat(value, f"{path}.{name}" if path else str(name)).items()
    }
