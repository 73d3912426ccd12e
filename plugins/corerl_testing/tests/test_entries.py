"""The light checks."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import click
import pytest

from corerl import option
from corerl.registry import Entry, Owner, Registries, Registry
from corerl_testing.checks import checks_of, outcome


def good(response: str, ground_truth: Any, data_source: str, extra_info: Any) -> float:
    return 0.0


def failures(registry: Registry[Any], target: Any, **facts: Any) -> dict[str, str]:
    entry: Entry[Any] = registry.entry("mine", target, Owner("acme"), **{"summary": "one line", **facts})
    results = map(outcome, checks_of(registry, entry, light=True))
    return {result.check: result.reason for result in results if result.status == "failed"}


def test_a_good_entry_passes_every_check() -> None:
    entry: Entry[Any] = Entry("scorer", "mine", good, Owner("acme"), summary="one line")
    results = list(map(outcome, checks_of(Registries().scorers, entry, light=True)))
    assert [result.check for result in results] == ["name", "summary", "options", "help", "import", "contract"]
    assert all(result.status == "ok" for result in results)


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


def test_an_agent_is_a_factory_or_an_async_function() -> None:
    async def function(task: Any, model: Any) -> None: ...

    async def wrong(task: Any) -> None: ...

    assert failures(Registries().agents, function) == {}
    assert failures(Registries().agents, lambda context: None) == {}
    assert "it is called as mine(task, model)" in failures(Registries().agents, wrong)["contract"]
    assert "it is called as mine(context)" in failures(Registries().agents, lambda: None)["contract"]


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
    reason = failures(Registries().scorers, takes_them)["contract"]
    assert re.match("missing a required (keyword-only )?argument: 'options'", reason)


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


def test_an_engine_that_is_not_installed_is_skipped_and_named(tmp_path: Path) -> None:
    backend = tmp_path / "backend.py"
    backend.write_text("import no_such_engine\n")
    entry: Entry[Any] = Entry("rollout backend", "mine", f"{backend}:Backend", Owner("acme"), summary="one line")
    results = {result.check: result for result in map(outcome, checks_of(Registries().rollout_backends, entry))}
    assert (results["import"].status, results["import"].reason) == (
        "skipped",
        "it needs the module no_such_engine, which is not installed",
    )
    assert "contract" not in results


def test_a_preset_is_called_without_arguments() -> None:
    assert failures(Registries().presets, lambda: {}) == {}
    assert "it is called as mine()" in failures(Registries().presets, lambda config: {})["contract"]
    reason = failures(Registries().presets, lambda options: {}, options=Options)["contract"]
    assert reason == "a preset has no options: it is called without arguments"


def test_a_token_selector_is_called_with_inputs_and_uniforms() -> None:
    def loss(inputs: Any) -> None: ...

    def select(inputs: Any, uniforms: Any) -> None: ...

    assert failures(Registries().policy_losses, loss, select_tokens=select) == {}
    assert (
        "too many positional arguments: it is called as loss(inputs, uniforms)"
        in failures(Registries().policy_losses, loss, select_tokens=loss)["contract"]
    )
    assert "No module named" in failures(Registries().policy_losses, loss, select_tokens="no_such_module:x")["import"]
