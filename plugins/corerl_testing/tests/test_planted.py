"""The kit against its planted faults."""

import itertools
import os
from typing import Any

import planted
import pytest

from corerl.plugins import load_plugins
from corerl.registry import Entry, Owner, Registry
from corerl_testing.checks import Check, checks_of
from corerl_testing.results import CheckSkipped

FAULTS = planted.faults()

NEVER_SEEN_TO_FAIL = {
    ("*", "name"),  # needs two owners of one name, which a fault has not: plugins/corerl_testing/tests/test_entries.py
    ("*", "same_on_cuda"),  # skipped without a CUDA device
}
"""(registry, check) without a planted fault; ``*`` stands for all"""


WRAPPED = ("Strategy", "Backend")
"""twins that are the default strategy and engine, handed through: the plugin that they come from checks these"""

rarely = pytest.mark.skipif(not os.environ.get("CORERL_EVERY_TWIN"), reason="run with CORERL_EVERY_TWIN=1")


def _with_id(check: Check) -> Any:
    marks = [rarely] if check.entry in WRAPPED and check.name == "twin passes" else []
    return pytest.param(check, id=f"{check.entry}-{check.name}", marks=marks)


@pytest.mark.parametrize("check", [_with_id(each) for each in planted.checks()])
def test_the_kit_catches_what_is_wrong_and_passes_what_is_right(check: Check) -> None:
    try:
        check.run()
    except CheckSkipped as skipped:
        pytest.skip(str(skipped))


def test_there_are_enough_faults() -> None:
    assert len(FAULTS) >= 420


@pytest.mark.parametrize("registry_name", sorted({fault.registry for fault in FAULTS}))
def test_every_check_of_a_kind_is_made_to_fail_by_a_fault(registry_name: str) -> None:
    """Of the light checks, which all kinds have, by a fault of any kind."""
    registry = getattr(load_plugins().registries, registry_name)
    fault = next(fault for fault in FAULTS if fault.registry == registry_name)
    light = {check.name for check in checks_of(registry, _entry(fault), light=True)}
    names = {check.name for check in fault.checks(fault.right)}
    caught = {fault.check for fault in FAULTS if fault.registry == registry_name or fault.check in light}
    unseen = {name for name in names - caught if not _is_excepted(registry_name, name)}
    assert unseen == set()


def _entry(fault: planted.Fault) -> Entry[object]:
    registry: Registry[Any] = getattr(load_plugins().registries, fault.registry)
    return registry.entry(fault.name, fault.right, Owner("corerl-testing"), **{"summary": "s", **fault.facts})


def _is_excepted(registry_name: str, check: str) -> bool:
    return any(pair in NEVER_SEEN_TO_FAIL for pair in itertools.product((registry_name, "*"), (check, "*")))


def test_no_exception_is_out_of_date() -> None:
    """One that a fault makes fail by now is to be taken out."""
    seen = {(fault.registry, fault.check) for fault in FAULTS} | {("*", fault.check) for fault in FAULTS}
    assert NEVER_SEEN_TO_FAIL.isdisjoint(seen)


def test_names_are_distinct() -> None:
    names = [(fault.registry, fault.name) for fault in FAULTS]
    assert len(names) == len(set(names))
