"""The checks that need no model."""

import dataclasses
from typing import Any

import click
import pytest

from corerl import option
from corerl.registry import Entry, Owner, Registries, Registry
from corerl.registry.entry_checks import check_entry


def good(response: str, ground_truth: Any, data_source: str, extra_info: Any) -> float:
    return 0.0


def failures(registry: Registry[Any], target: Any, **facts: Any) -> dict[str, str]:
    entry: Entry[Any] = Entry(registry.kind, "mine", target, Owner("acme"), **{"summary": "one line", **facts})
    return {result.check: result.reason for result in check_entry(registry, entry) if not result.ok}


def test_a_good_entry_passes_every_check() -> None:
    entry: Entry[Any] = Entry("scorer", "mine", good, Owner("acme"), summary="one line")
    results = list(check_entry(Registries().scorers, entry))
    assert [result.check for result in results] == ["name", "summary", "options", "help", "import", "contract"]
    assert all(result.ok for result in results)


def test_an_empty_summary_fails() -> None:
    assert set(failures(Registries().scorers, good, summary=" ")) == {"summary"}


def test_a_target_that_cannot_be_imported_fails_and_its_contract_is_not_checked() -> None:
    assert "No module named 'no_such_module'" in failures(Registries().scorers, "no_such_module:x")["import"]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (
            lambda response, ground_truth: 0.0,
            "too many positional arguments: it is called as mine(response, ground_truth, ",
        ),
        (lambda a, b, c, d, e: 0.0, "missing a required argument: 'e'"),
        ("text", "must be callable"),
    ],
)
def test_a_signature_that_the_contract_does_not_fit_fails(target: Any, reason: str) -> None:
    if target == "text":
        target = 3
    assert reason in failures(Registries().scorers, target)["contract"]


def test_keyword_arguments_of_the_contract_are_passed_by_keyword() -> None:
    def manager(scorers: Any, num_workers: int) -> None: ...

    reason = failures(Registries().reward_managers, manager)["contract"]
    assert (
        reason
        == "got an unexpected keyword argument 'timeout': it is called as mine(scorers, num_workers=…, timeout=…)"
    )


@dataclasses.dataclass
class Options:
    weight: float = option(1.0, "of the score", ge=0)


def test_an_entry_with_options_must_take_them() -> None:
    def takes_them(response: str, truth: Any, source: str, info: Any, *, options: Options) -> float:
        return 0.0

    assert "unexpected keyword argument 'options'" in failures(Registries().scorers, good, options=Options)["contract"]
    assert failures(Registries().scorers, takes_them, options=Options) == {}
    assert "missing a required argument: 'options'" in failures(Registries().scorers, takes_them)["contract"]


@dataclasses.dataclass
class OutOfRange:
    weight: float = option(-1.0, "of the score", ge=0)


@dataclasses.dataclass
class WrongType:
    weight: int = option("heavy", "of the score")


@dataclasses.dataclass
class NoHelp:
    weight: float = 1.0


@pytest.mark.parametrize(
    ("options", "check", "reason"),
    [
        (OutOfRange, "options", "weight: must be at least 0, not -1.0"),
        (WrongType, "options", "weight"),
        (NoHelp, "help", "weight without help: declare it with corerl.option(default, 'help')"),
    ],
)
def test_bad_options_fail(options: type, check: str, reason: str) -> None:
    assert reason in failures(Registries().scorers, lambda *a, options: 0.0, options=options)[check]


def test_a_command_must_be_a_click_command() -> None:
    assert failures(Registries().commands, click.Command("mine")) == {}
    assert "must be a click command" in failures(Registries().commands, print)["contract"]
