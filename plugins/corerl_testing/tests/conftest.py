"""Running all checks of an implementation that no plugin registers."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corerl.plugins import load_plugins
from corerl.registry import Entry, Owner
from corerl_testing.checks import Outcome, checks_of, outcome

sys.path.insert(0, str(Path(__file__).parent))

Outcomes = Callable[..., dict[str, Outcome]]
Failures = Callable[..., dict[str, str]]


@pytest.fixture(scope="session")
def outcomes() -> Outcomes:
    """(registry field, target, **facts) -> what became of every check, or of ``only`` one, by name."""

    def run(field: str, target: Any, *, only: str | None = None, **facts: Any) -> dict[str, Outcome]:
        registry = getattr(load_plugins().registries, field)
        entry: Entry[Any] = registry.entry("mine", target, Owner("acme"), **{"summary": "one line", **facts})
        checks = [check for check in checks_of(registry, entry) if only in (None, check.name)]
        return {result.check: result for result in map(outcome, checks)}

    return run


@pytest.fixture(scope="session")
def failures(outcomes: Outcomes) -> Failures:
    """As ``outcomes``: the checks that fail, with their reasons."""

    def run(field: str, target: Any, **facts: Any) -> dict[str, str]:
        return {
            name: result.reason
            for name, result in outcomes(field, target, **facts).items()
            if result.status == "failed"
        }

    return run
