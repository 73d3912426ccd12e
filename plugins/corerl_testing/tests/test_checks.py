"""The frame: options, skips, pytest and the command."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from corerl import option
from corerl.cli.main import run
from corerl.contracts.kl_controllers import KLController
from corerl.errors import ConfigError, PluginError
from corerl.registry import Entry, Owner, Registries
from corerl_testing import CheckFailed, CheckSkipped, checks_of, conformance_tests
from corerl_testing.checks import outcome, share_options

PLUGIN = """
from dataclasses import dataclass

from corerl import hookimpl, option


@dataclass
class Options:
    factor: float = option(help="of each step", ge=0)


def shrinking(coef, kl, responses, *, options):
    return coef * options.factor


def negative(coef, kl, responses):
    return -1.0


@hookimpl
def register_kl_controllers(register):
    register("shrinking", shrinking, options=Options, summary="a factor at each step")
    register("negative", negative, summary="wrong")
"""


@dataclass
class Options:
    factor: float = option(help="of each step", ge=0)


def shrinking(coef: float, kl: float, responses: int, *, options: Options) -> float:
    return coef * options.factor


def raising(coef: float, kl: float, responses: int) -> float:
    raise ZeroDivisionError("no\nresponses")


def entry(target: Any, **facts: Any) -> Entry[KLController]:
    return Entry("KL controller", "mine", target, Owner("acme"), **{"summary": "one line", **facts})


def test_options_without_defaults_must_be_given() -> None:
    registry = Registries().kl_controllers
    checks = list(checks_of(registry, entry(shrinking, options=Options)))
    with pytest.raises(CheckSkipped, match="the options factor have no default and were not given"):
        checks[-1].run()
    names = [check.name for check in checks_of(registry, entry(shrinking, options=Options), {"factor": 0.5})]
    assert names[6:8] == ["finite_and_not_negative", "pure"]
    with pytest.raises(ConfigError, match=r"mine.factor: must be at least 0, not -1"):
        list(checks_of(registry, entry(shrinking, options=Options), {"factor": -1}))
    with pytest.raises(ConfigError, match="has no options"):
        list(checks_of(registry, entry(raising), {"factor": 1}))


def test_what_an_implementation_raises_is_a_failure_of_the_check_in_one_line() -> None:
    check = next(check for check in checks_of(Registries().kl_controllers, entry(raising)) if check.name == "pure")
    with pytest.raises(CheckFailed, match=r"^it raised ZeroDivisionError: no responses$") as failure:
        check.run()
    assert "in raising" in str(failure.value.__cause__) and "ZeroDivisionError" in str(failure.value.__cause__)
    assert (outcome(check).status, outcome(check).check) == ("failed", "pure")


def test_light_checks_leave_out_behaviour() -> None:
    names = [check.name for check in checks_of(Registries().kl_controllers, entry(raising), light=True)]
    assert names == ["name", "summary", "options", "help", "import", "contract"]


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    file = tmp_path / "acme.py"
    file.write_text(PLUGIN)
    return str(file)


def lines_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[str]:
    assert run(["plugins", "check", *arguments]) == code
    return capsys.readouterr().out.splitlines()


def test_the_command_prints_ok_skipped_and_failed(capsys: pytest.CaptureFixture[str], plugin: str) -> None:
    lines = lines_of(capsys, plugin, "--plugin", plugin, code=1)
    assert [line.partition("  ")[2].strip() for line in lines if " ok" not in line] == [
        "behaviour                        skipped: the options factor have no default and were not given",
        "finite_and_not_negative          FAILED: with coef 0, kl -1000 and 1 responses the coefficient becomes -1: "
        "it must be finite and at least 0",
    ]
    assert lines[0].split()[-2:] == ["load", "ok"]


def test_the_command_takes_options(capsys: pytest.CaptureFixture[str], plugin: str) -> None:
    lines = lines_of(capsys, "shrinking", "--plugin", plugin, "--option", "shrinking.factor=0.5")
    assert lines[-1].split() == ["KL", "controller", "shrinking", "same_in_a_fresh_process", "ok"]
    assert not [line for line in lines if "skipped" in line]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("factor=1", "error: --option factor=1: it must be NAME.KEY=VALUE; those with options are: shrinking"),
        ("shrinking.factr=1", "error: shrinking.factr: unknown key"),
        ("shrinking.factor=-1", "error: shrinking.factor: must be at least 0, not -1"),
    ],
)
def test_a_wrong_option_is_an_error(capsys: pytest.CaptureFixture[str], plugin: str, given: str, message: str) -> None:
    assert run(["plugins", "check", "shrinking", "--plugin", plugin, "--option", given]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_the_command_as_json(capsys: pytest.CaptureFixture[str], plugin: str) -> None:
    assert run(["plugins", "check", "negative", "--plugin", plugin, "--json"]) == 1
    results = json.loads(capsys.readouterr().out)
    assert results[-1] == {
        "kind": "KL controller",
        "entry": "negative",
        "check": "same_in_a_fresh_process",
        "status": "ok",
        "reason": "",
        "ok": True,
    }
    assert {result["check"] for result in results if not result["ok"]} == {"finite_and_not_negative"}


def test_a_check_that_ends_its_process_does_not_end_the_command(tmp_path: Path, plugin: str) -> None:
    dying = tmp_path / "dying.py"
    dying.write_text(PLUGIN.replace("return -1.0", "import os; os._exit(3)"))
    command = [sys.executable, "-m", "corerl", "plugins", "check", "negative", "--plugin", str(dying)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    lines = [line.partition("  ")[2].strip() for line in result.stdout.splitlines()[-4:]]
    assert lines[0] == (
        "finite_and_not_negative          FAILED: the controller with coef 0, kl -1000 and 1 responses ended the "
        "process (exit code 3): raise an exception instead"
    )
    assert all(" ended the process" in line for line in lines)


def test_lines_appear_as_the_checks_run(tmp_path: Path, plugin: str) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text(PLUGIN.replace("return -1.0", "import time; time.sleep(1000)"))
    command = [sys.executable, "-m", "corerl", "plugins", "check", "negative", "--plugin", str(slow)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split()[-2:] == ["name", "ok"]
        assert process.poll() is None
        process.kill()


def test_the_frame_and_the_light_checks_import_no_torch(plugin: str) -> None:
    code = (
        "import sys, corerl_testing; from corerl.cli.main import run; "
        f"run(['plugins', 'check', 'shrinking', '--light', '--plugin', {plugin!r}]); run(['plugins', 'list']); "
        "sys.exit(int('torch' in sys.modules or 'pytest' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120).returncode == 0


def test_a_file_of_two_statements_tests_a_plugin(tmp_path: Path, plugin: str) -> None:
    file = tmp_path / "test_acme.py"
    file.write_text(
        "from corerl_testing import conformance_tests\n\n"
        f"test_conformance = conformance_tests({plugin!r}, plugin={plugin!r}, "
        "options={'shrinking': {'factor': 0.5}})\n"
        f"test_without = conformance_tests('shrinking', plugin={plugin!r})\n"
    )
    wide = {**os.environ, "COLUMNS": "300"}
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=wide)
    summary = [line for line in result.stdout.splitlines() if "test_acme.py" in line]
    assert "PASSED test_acme.py::test_conformance[kl_controllers/shrinking/pure]" in summary
    failed = [line for line in summary if line.startswith("FAILED")]
    assert len(failed) == 1
    assert failed[0].startswith(
        "FAILED test_acme.py::test_conformance[kl_controllers/negative/finite_and_not_negative] - "
        "corerl_testing.results.CheckFailed: with coef 0, "
    )
    skipped = [line for line in result.stdout.splitlines() if line.startswith("SKIPPED")]
    assert len(skipped) == 1 and skipped[0].endswith("the options factor have no default and were not given")


def test_the_document_shows_the_file_of_a_plugin() -> None:
    root = Path(__file__).parents[3]
    blocks = re.findall(r"```python\n(.*?)```", (root / "docs" / "testing.md").read_text(), flags=re.DOTALL)
    file = root / "plugins" / "corerl_grpo" / "tests" / "test_conformance.py"
    assert blocks[0].replace("acme-corerl", "corerl-grpo") == file.read_text()


def test_the_loop_of_the_document_runs(capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).parents[3]
    pytest.importorskip("corerl_grpo")
    code = re.findall(r"```python\n(.*?)```", (root / "docs" / "testing.md").read_text(), flags=re.DOTALL)[-1]
    exec(code, {})
    statuses = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert (statuses["gradient_invariant_token_mean"], statuses["selector_shape"]) == ("ok", "skipped")
    assert "failed" not in statuses.values()


def test_options_for_a_name_that_is_not_there_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"consol: nothing of this name has options; those that have some are: none"):
        conformance_tests("corerl", options={"consol": {}})


def test_a_plugin_that_registers_nothing_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "empty.py"
    file.write_text("")
    with pytest.raises(PluginError, match=r"empty\.py registers nothing that could be checked$"):
        conformance_tests(str(file), plugin=str(file))


def test_entries_of_one_name_get_the_options_that_they_have() -> None:
    @dataclass
    class Others:
        width: int = option(1, "of it")

    entries = [entry(raising), entry(shrinking, options=Options), entry(raising, options=Others)]
    assert share_options(entries, {"mine": {"factor": 2, "width": 3}}) == [{}, {"factor": 2}, {"width": 3}]
    assert share_options(entries, {"mine": {"nobodys": 1}}) == [{}, {"nobodys": 1}, {"nobodys": 1}]
