"""A planted fault: an implementation with one flaw, and its twin without it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from corerl.plugins import load_plugins
from corerl.registry import Owner, Registry
from corerl_testing import deadline
from corerl_testing.checks import Check, checks_of, outcome
from corerl_testing.results import CheckFailed, CheckSkipped


@dataclass(frozen=True)
class Fault:
    """A wrong implementation, the check that must catch it, and a right twin that passes every check.

    Attributes:
        registry: the registry's name, as in the hook ``register_<registry>``.
        name: of the fault, as a Python name.
        flaw: the error, in one line.
        wrong: the target with the flaw, or ``"module:attribute"``.
        right: the target without it. Several faults may share a twin.
        check: the name of the check that must fail.
        reason: a part of the required message of the failure.
        facts: further fields of both entries (``needs``, ``options``, …).
        wrong_facts: further fields of the wrong entry only, for a flaw in one of them (``select_tokens``).
        requires: the registered name that both use; '' for none. If it is not installed, the fault is skipped.
        patience: factor of every deadline of the check, for a fault that hangs.
    """

    registry: str
    name: str
    flaw: str
    wrong: Any
    right: Any
    check: str
    reason: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    wrong_facts: Mapping[str, Any] = field(default_factory=dict)
    requires: str = ""
    patience: float = 1.0

    @property
    def kind(self) -> str:
        """The kind in words: "policy loss"."""
        return self._registry.kind

    @property
    def _registry(self) -> Registry[Any]:
        registry: Registry[Any] = getattr(load_plugins().registries, self.registry)
        return registry

    def checks(self, target: Any, wrong_facts: Mapping[str, Any] | None = None) -> Iterator[Check]:
        """The conformance checks of ``wrong`` or ``right``."""
        facts: dict[str, Any] = {"summary": self.flaw, **self.facts, **(wrong_facts or {})}
        return checks_of(self._registry, self._registry.entry(self.name, target, Owner("corerl-testing"), **facts))

    def expect_caught(self) -> None:
        """Run the fault's check on ``wrong``.

        Raises:
            CheckFailed: the check passes, fails with another message, or is not among the checks of the kind.
            CheckSkipped: the check cannot run here.
        """
        self._require()
        check = next((check for check in self.checks(self.wrong, self.wrong_facts) if check.name == self.check), None)
        if check is None:
            raise CheckFailed(f"a {self.kind} has no check {self.check}")
        with deadline.patience(self.patience):
            result = outcome(check)
        if result.status == "skipped":
            raise CheckSkipped(f"{self.check} is skipped: {result.reason}")
        if result.status == "ok":
            raise CheckFailed(f"{self.check} passes, although {self.flaw}")
        if self.reason not in result.reason:
            raise CheckFailed(f"{self.check} fails for another reason than '{self.reason}': {result.reason}")

    def expect_twin_passes(self) -> None:
        """Run every check on ``right``.

        Raises:
            CheckFailed: a check fails.
            CheckSkipped: the required part is not installed.
        """
        self._require()
        for check in self.checks(self.right):
            result = outcome(check)
            if result.status == "failed":
                raise CheckFailed(f"the right twin fails {check.name}: {result.reason}")

    def _require(self) -> None:
        if self.requires and self.requires not in getattr(load_plugins().registries, self.registry):
            raise CheckSkipped(f"needs the {self.kind} '{self.requires}', which is not installed")


def self_checks(faults: list[Fault]) -> Iterator[Check]:
    """One check for each fault, which passes if the kit detects it, and one for each distinct twin."""
    twins: list[tuple[str, Any, Mapping[str, Any]]] = []
    for fault in faults:
        yield Check(fault.kind, fault.name, fault.check, fault.expect_caught)
        twin = (fault.registry, fault.right, fault.facts)
        if twin not in twins:
            twins.append(twin)
            yield Check(fault.kind, _name(fault.right), "twin passes", fault.expect_twin_passes)


def _name(target: str | Callable[..., Any]) -> str:
    return target.rpartition(":")[2] if isinstance(target, str) else getattr(target, "__name__", repr(target))
