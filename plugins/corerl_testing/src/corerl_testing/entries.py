"""The light checks of every registered entry: they import its target, but no torch themselves."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from corerl.contracts.agents import Model, Task
from corerl.contracts.kinds import code_facts
from corerl.contracts.options import check_ranges
from corerl.errors import CoreRLError, PluginError
from corerl.registry import Entry, Registry
from corerl.registry.base import loaded
from corerl.registry.coroutines import is_async
from corerl_testing.results import CheckFailed, CheckSkipped, Run

ENGINES = ("rollout backend", "training strategy", "runtime", "tracker")
"""kinds whose targets may import an engine that is not installed in this environment"""


def checks(registry: Registry[Any], entry: Entry[Any]) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs; without the contract if the target cannot be imported."""
    yield "name", lambda: _fail_for(registry.clash(entry.name))
    yield "summary", lambda: _fail_for("" if entry.summary.strip() else "is empty: say in one line what this is")
    yield "options", lambda: _options(entry)
    yield "help", lambda: _help(entry)
    yield "import", lambda: _import(entry)
    if importable(entry):
        yield "contract", lambda: _contract(registry, entry)


def importable(entry: Entry[Any]) -> bool:
    """Whether the target, and other code named by the entry, can be imported."""
    try:
        entry.load_all()
    except PluginError:
        return False
    return True


def required_options(entry: Entry[Any]) -> list[str]:
    """The names of the options without a default."""
    return [
        field.name
        for field in entry.option_fields()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]


def _fail_for(reason: str) -> None:
    if reason:
        raise CheckFailed(reason)


def _options(entry: Entry[Any]) -> None:
    """The options' defaults have the declared types and are in the declared ranges."""
    if entry.options is None:
        return
    from corerl.config import typed

    try:
        options: Any = entry.load_options()
        if required_options(entry):  # there is no instance to check
            typed.fill(options, {})
        else:
            check_ranges(typed.build(options, {}), "")
    except CoreRLError as error:
        raise CheckFailed(str(error)) from error


def _help(entry: Entry[Any]) -> None:
    try:
        bare = [field.name for field in entry.option_fields() if not field.metadata.get("help")]
    except PluginError as error:
        raise CheckFailed(str(error)) from error
    _fail_for(f"{', '.join(bare)} without help: declare it with corerl.option(default, 'help')" if bare else "")


def _import(entry: Entry[Any]) -> None:
    try:
        entry.load_all()
    except PluginError as error:
        cause = error.__cause__
        module = str(entry.target).partition(":")[0]
        if entry.kind in ENGINES and isinstance(cause, ModuleNotFoundError) and cause.name:
            missing = cause.name.partition(".")[0]
            if missing != module.partition(".")[0]:
                raise CheckSkipped(f"it needs the module {missing}, which is not installed") from error
        raise CheckFailed(str(error)) from error


def _contract(registry: Registry[Any], entry: Entry[Any]) -> None:
    target: Any = entry.load()
    if registry.kind == "command":
        _command(target)
        return
    _signature(entry, AgentFunction if _is_agent(registry, target) else registry.contract, target, entry.name)
    if registry.kind == "preset" and entry.options is not None:
        raise CheckFailed("a preset has no options: it is called without arguments")
    for fact in code_facts(entry.facts):
        code = entry.load_fact(fact.name)
        contract, takes_options = loaded(fact.metadata["contract"]), fact.metadata["takes_options"]
        _signature(entry, contract, code, getattr(code, "__name__", fact.name), options=takes_options)


class AgentFunction(Protocol):
    """An agent without a factory."""

    def __call__(self, task: Task, model: Model) -> Any: ...


def _is_agent(registry: Registry[Any], target: Any) -> bool:
    return registry.kind == "agent" and is_async(target)


def _command(target: Any) -> None:
    import click

    if not isinstance(target, click.Command):
        raise CheckFailed(f"must be a click command, not {target!r}")


def _signature(
    entry: Entry[Any], contract: type, target: Callable[..., Any], name: str, *, options: bool = True
) -> None:
    """The target can be called like its contract's ``__call__``, with options if the entry has options."""
    if not callable(target):
        raise CheckFailed(f"must be callable, not {target!r}")
    parameters = list(inspect.signature(contract.__call__).parameters.values())[1:]
    positional = [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
    keywords = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    if options and entry.options is not None:
        keywords.append("options")
    try:
        inspect.signature(target).bind(*positional, **dict.fromkeys(keywords))
    except TypeError as error:
        call = ", ".join([*positional, *(f"{keyword}=…" for keyword in keywords)])
        raise CheckFailed(f"{error}: it is called as {name}({call})") from error
    except ValueError:  # a builtin without a signature
        return
