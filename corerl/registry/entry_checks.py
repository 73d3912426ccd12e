"""Named checks of a registered entry that need no model: the command ``corerl plugins check`` and tests run them."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from corerl.errors import CoreRLError
from corerl.options import check_ranges
from corerl.registry.base import Entry, Registry


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """``reason`` says what is wrong, '' when the check holds."""

    kind: str
    entry: str
    check: str
    reason: str

    @property
    def ok(self) -> bool:
        return not self.reason


def check_entry(registry: Registry[Any], entry: Entry[Any]) -> Iterator[CheckResult]:
    """Run every check; those that need the target are left out when it cannot be imported."""
    results = {
        "name": registry.clash(entry.name),
        "summary": "" if entry.summary.strip() else "is empty: say in one line what this is",
        "options": _options(entry),
        "help": _help(entry),
        "import": _reason(entry.load),
    }
    if not results["import"]:
        target: Any = entry.load()
        results["contract"] = _command(target) if registry.kind == "command" else _signature(registry, entry, target)
    for check, reason in results.items():
        yield CheckResult(entry.kind, entry.name, check, reason)


def _reason(action: Callable[[], object]) -> str:
    try:
        action()
    except CoreRLError as error:
        return str(error)
    return ""


def _options(entry: Entry[Any]) -> str:
    """Whether the options' defaults are of the declared types and in the declared ranges."""
    if entry.options is None:
        return ""
    from corerl.config import typed

    required = [
        field.name
        for field in dataclasses.fields(entry.options)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if required:  # there is no instance to check
        return _reason(lambda: typed.fill(_as_class(entry.options), {}))
    return _reason(lambda: check_ranges(typed.build(_as_class(entry.options), {}), ""))


def _help(entry: Entry[Any]) -> str:
    fields = dataclasses.fields(entry.options) if entry.options else ()
    bare = [field.name for field in fields if not field.metadata.get("help")]
    return f"{', '.join(bare)} without help: declare it with corerl.option(default, 'help')" if bare else ""


def _as_class(options: type | None) -> type[Any]:
    assert options is not None
    return options


def _command(target: Any) -> str:
    import click

    return "" if isinstance(target, click.Command) else f"must be a click command, not {target!r}"


def _signature(registry: Registry[Any], entry: Entry[Any], target: Any) -> str:
    """Whether the target can be called as its contract's ``__call__`` is."""
    if not callable(target):
        return f"must be callable, not {target!r}"
    parameters = list(inspect.signature(registry.contract.__call__).parameters.values())[1:]
    positional = [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
    keywords = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    if entry.options is not None:
        keywords.append("options")
    try:
        inspect.signature(target).bind(*positional, **dict.fromkeys(keywords))
    except TypeError as error:
        call = ", ".join([*positional, *(f"{name}=…" for name in keywords)])
        return f"{error}: it is called as {entry.name}({call})"
    except ValueError:  # built into the interpreter, without a signature
        return ""
    return ""
