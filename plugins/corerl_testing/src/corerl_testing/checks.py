"""Checks, and the list of checks for an entry, a registered name or a distribution."""

import asyncio
import functools
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from corerl.errors import ConfigError, described
from corerl.registry import Entry, Registry
from corerl_testing import entries
from corerl_testing.deadline import within
from corerl_testing.isolated import isolated
from corerl_testing.results import CheckFailed, CheckSkipped, Run, skipping

__all__ = [
    "BEHAVIOUR",
    "Check",
    "CheckFailed",
    "CheckSkipped",
    "Outcome",
    "Run",
    "checks_of",
    "outcome",
    "share_options",
    "skipping",
]

BEHAVIOUR = {
    "agent": "corerl_testing.agents",
    "advantage estimator": "corerl_testing.advantage_estimators",
    "policy loss": "corerl_testing.policy_losses",
    "KL type": "corerl_testing.kl_types",
    "KL controller": "corerl_testing.kl_controllers",
    "value loss": "corerl_testing.value_losses",
    "batch filter": "corerl_testing.batch_filters",
    "environment": "corerl_testing.environments",
    "preset": "corerl_testing.presets",
    "reward manager": "corerl_testing.reward_managers",
    "scorer": "corerl_testing.scorers",
    "rollout backend": "corerl_testing.rollout_backends",
    "training strategy": "corerl_testing.training_strategies",
}
"""kind -> the module with ``checks(selected)``; imported on use, because most of them need torch"""

ISOLATED = ("KL controller", "environment", "preset", "reward manager", "scorer")
"""kinds whose checks run in a separate process: plain Python, which may hold the interpreter lock for ever"""

SECONDS = 600.0
"""seconds for a check of another kind"""


@dataclass(frozen=True)
class Check:
    """One check of one entry.

    Attributes:
        kind: of the entry, in words ("policy loss").
        entry: its name.
        name: name of the check, as a Python name ("finite_at_extreme_ratios").
        run: returns if the check passes; raises :class:`CheckFailed` or :class:`CheckSkipped`.
    """

    kind: str
    entry: str
    name: str
    run: Run


@dataclass(frozen=True)
class Outcome:
    """The result of a check; ``reason`` is '' if it passes."""

    kind: str
    entry: str
    check: str
    status: Literal["ok", "skipped", "failed"]
    reason: str = ""


def checks_of(
    registry: Registry[Any], entry: Entry[Any], options: Mapping[str, Any] | None = None, *, light: bool = False
) -> Iterator[Check]:
    """Every check of an entry: first the light ones of :mod:`corerl_testing.entries`, then those of its kind.

    Args:
        options: the entry's options as plain values; defaults are used for the others.
        light: without the checks of the kind, which need torch.

    Raises:
        ConfigError: ``options`` has an unknown key, a wrong type or a value out of range.
    """
    for name, run in entries.checks(registry, entry):
        yield _check(entry, name, run)
    if not light and entry.kind in BEHAVIOUR and entries.importable(entry):
        for name, run in _behaviour(registry, entry, options):
            yield _check(entry, name, run)


def share_options(entries: Sequence[Entry[Any]], given: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The options of each entry, from options by name; of several entries with one name, each gets its own options.

    Raises:
        ConfigError: no entry of a name has options.
    """
    shares: list[dict[str, Any]] = [{} for _ in entries]
    for name, options in given.items():
        same = [index for index, entry in enumerate(entries) if entry.name == name and entry.options is not None]
        if not same:
            known = ", ".join(sorted({entry.name for entry in entries if entry.options is not None})) or "none"
            raise ConfigError(name, f"nothing of this name has options; those that have some are: {known}")
        for key, value in options.items():
            takers = [index for index in same if key in _fields(entries[index])]
            for index in takers or same:  # if no entry takes them, the check of the options reports the error
                shares[index][key] = value
    return shares


def outcome(check: Check) -> Outcome:
    """Run a check and return its result."""
    status: Literal["ok", "skipped", "failed"] = "ok"
    reason = ""
    try:
        check.run()
    except CheckSkipped as skipped:
        status, reason = "skipped", str(skipped)
    except CheckFailed as failure:
        status, reason = "failed", str(failure)
    return Outcome(check.kind, check.entry, check.name, status, reason)


def _fields(entry: Entry[Any]) -> set[str]:
    return {field.name for field in entry.option_fields()}


def _behaviour(
    registry: Registry[Any], entry: Entry[Any], options: Mapping[str, Any] | None
) -> Iterator[tuple[str, Run]]:
    missing = [name for name in entries.required_options(entry) if name not in (options or {})]
    try:
        selected = registry.with_options(entry, options or {}, entry.name)
    except ConfigError as error:
        if error.key in [f"{entry.name}.{name}" for name in missing]:
            yield "behaviour", skipping(f"the options {', '.join(missing)} have no default and were not given")
        elif options:
            raise
        else:
            yield "behaviour", skipping(f"its options have no usable defaults: {error}")
        return
    try:
        module = importlib.import_module(BEHAVIOUR[entry.kind])
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "corerl":
            raise
        yield "behaviour", skipping(f"the checks need the module {error.name}, which is not installed")
        return
    checks = module.checks(selected)
    yield from isolated(selected, module.__name__, checks) if entry.kind in ISOLATED else _timed(checks)


def _timed(checks: Iterator[tuple[str, Run]]) -> Iterator[tuple[str, Run]]:
    for name, run in checks:
        yield name, functools.partial(within, SECONDS, run, f"the check {name}")


def _check(entry: Entry[Any], name: str, run: Run) -> Check:
    return Check(entry.kind, entry.name, name, functools.partial(_guarded, run))


def _guarded(run: Run) -> None:
    """Convert any other exception of the implementation to a failure."""
    try:
        run()
    except (CheckFailed, CheckSkipped):
        raise
    except (Exception, SystemExit, GeneratorExit, asyncio.CancelledError) as error:
        raise CheckFailed(f"it raised {described(error)}") from error
