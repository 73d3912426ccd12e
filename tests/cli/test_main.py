"""The program's frame: help, exit codes, commands of plugins."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from corerl import __version__
from corerl.cli.main import run

HEAVY = {"torch", "transformers", "pyarrow", "matplotlib", "ray", "omegaconf", "rich"}

COMMANDS = """
from corerl import hookimpl

@hookimpl
def register_commands(register):
    register("acme-login", "acme_commands:login", summary="Store a token for the Acme cluster.")
    register("acme-fail", "acme_commands:fail", summary="Fail in the way that is asked for.")
    register("acme.token.store", "acme_commands:login", summary="Store one.")
    register("acme.token.drop", "acme_nowhere:gone", summary="Drop one.")
    register("acme-gone", "acme_nowhere:gone", summary="Point at nothing.")
"""

ACME = """
import click
from corerl.errors import ConfigError, RunError

@click.command()
@click.argument("user")
def login(user):
    click.echo(f"hello {user}")

FAILURES = {
    "run": RunError("worker 3 died"),
    "request": ConfigError("rollout.n", "must be at least 2, not 1"),
    "bug": ZeroDivisionError("oops"),
    "interrupt": KeyboardInterrupt(),
}

@click.command()
@click.argument("how")
def fail(how):
    if how == "exit":
        raise SystemExit(7)
    if how == "context":
        click.get_current_context().exit(5)
    raise FAILURES[how]
"""


@pytest.fixture
def acme(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which the distribution ``acme`` with its three commands is installed."""
    metadata = tmp_path / "acme-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[corerl]\nacme = acme_plugin\n")
    (tmp_path / "acme_plugin.py").write_text(COMMANDS)
    (tmp_path / "acme_commands.py").write_text(ACME)
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def corerl(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    program = "import sys; from corerl.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True, check=False
    )


LIGHT = [["--help"], ["plugins", "list"], ["plugins", "--help"], ["--version"]]
LIGHT += [[*command, "--help"] for command in (["generate"], ["score"], ["eval"], ["data", "inspect"])]


@pytest.mark.parametrize("arguments", LIGHT)
def test_a_light_command_imports_nothing_heavy(arguments: list[str]) -> None:
    program = (
        f"import sys; from corerl.cli.main import run; code = run({arguments}); print(*sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert HEAVY & set(done.stdout.splitlines()[-1].split()) == set()


def test_the_help_imports_plugin_modules_and_no_parts_options_or_contracts() -> None:
    program = "import sys; from corerl.cli.main import run; run(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = set(done.stdout.splitlines()[-1].split())
    surplus = {"asyncio", "numpy", "rich", "difflib", "corerl_check", "corerl.config", "corerl.secrets"}
    assert (HEAVY | surplus) & modules == set()
    contracts = {name for name in modules if name.startswith("corerl.contracts.")}
    declared = ("advantage_estimators", "kl_types", "policy_losses")
    known = {
        "commands",
        "facts",
        "kinds",
        "surroundings",
        "losses",
        "metrics",
        "options",
        "scorers",
        *declared,
    }  # those with needs
    assert contracts <= {f"corerl.contracts.{name}" for name in known}
    own = {name.partition(".")[2] for name in modules if name.startswith("corerl_")}
    # data sources of scorers; the contract of a kind
    assert own - {""} <= {"plugin", "sources", "optimizers", "optimizers.contract"}


def test_scoring_inspecting_and_refusing_import_no_torch(tmp_path: Path) -> None:
    pytest.importorskip("corerl_rewards")
    row = {"data_source": "openai/gsm8k", "response": "#### 4", "prompt": [{"role": "user", "content": "2 + 2 = ?"}]}
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({**row, "reward_model": {"ground_truth": "4"}}))
    commands = [["score", str(file)], ["eval", str(file)], ["data", "inspect", str(file), "--strict"]]
    commands += [["tiny-model", "--out", str(tmp_path / "model"), "--corpus", "nowhere.parquet"]]
    program = f"import sys; from corerl.cli.main import run; print([run(each) for each in {commands}], *sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    codes, modules = done.stdout.splitlines()[-1].split("]")
    assert codes == "[0, 0, 0, 2"
    assert {"torch", "transformers", "ray"} & set(modules.split()) == set()


@pytest.mark.parametrize(
    "module", ["corerl.plugins", "corerl.registry", "corerl.hookspecs", "corerl_tools.config_show"]
)
def test_a_light_module_imports_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (HEAVY - {"omegaconf"}) & set(done.stdout.split()) == set()


def test_the_help_lists_the_commands_with_their_summaries(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert run([]) == 0
    assert capsys.readouterr().out == shown
    commands = shown.partition("Commands:")[2].split()
    assert {"train", "sft", "prepare", "report", "plugins", "config"} <= set(commands)
    assert "Train a model by reinforcement learning." in shown


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"corerl, version {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "error: unknown command 'trian' (did you mean 'train'?); known: "),
        (["plugins", "lst"], "error: unknown command 'plugins lst' (did you mean 'plugins list'?); known: "),
        (["plugins", "list", "--jsno"], "error: No such option '--jsno'"),
        (
            ["train", "c.yaml", "--preset", "dapo"],
            "error: No such option '--preset'. Keys of a config are written without dashes: preset=VALUE. (see corerl ",
        ),
        (
            ["train", "c.yaml", "--actor.optim.lr=1"],
            "error: No such option '--actor.optim.lr'. Keys of a config are written without dashes: actor.optim.lr=",
        ),
        (["plugins", "show"], "error: Missing argument 'NAME'. (see corerl plugins show --help)"),
        (["config", "show", "none.yaml"], "error: cannot read the config file none.yaml: No such file or directory"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(message)
    assert shown.err.count("\n") == 1


def test_a_command_of_a_plugin_is_listed_without_being_imported(acme: dict[str, str]) -> None:
    shown = " ".join(corerl("--help", environment=acme).stdout.split())
    assert "acme-login Store a token for the Acme cluster." in shown
    assert "acme-gone Point at nothing." in shown
    program = "import sys; from corerl.cli.main import run; run(['--help']); sys.exit('acme_commands' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], env=acme, check=True, capture_output=True)


def test_a_name_with_dots_is_called_in_words(acme: dict[str, str]) -> None:
    done = corerl("acme", "token", "store", "ada", environment=acme)
    assert (done.returncode, done.stdout) == (0, "hello ada\n")
    assert "acme token store Store one." in " ".join(corerl("--help", environment=acme).stdout.split())
    shown = corerl("acme", "--help", environment=acme).stdout.split("Commands:")[1].split()
    assert shown == ["token", "drop", "Drop", "one.", "token", "store", "Store", "one."]
    wrong = corerl("acme", "token", "stor", environment=acme)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "unknown command 'acme token stor' (did you mean 'acme token store'?)" in wrong.stderr


def test_a_command_of_a_plugin_runs(acme: dict[str, str]) -> None:
    done = corerl("acme-login", "ada", environment=acme)
    assert (done.returncode, done.stdout) == (0, "hello ada\n")


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        ("run", 1, "error: worker 3 died\n"),
        ("request", 2, "error: rollout.n: must be at least 2, not 1\n"),
        ("exit", 7, ""),
        ("context", 5, ""),
    ],
)
def test_a_failure_is_one_line_and_its_exit_code(acme: dict[str, str], how: str, code: int, message: str) -> None:
    done = corerl("acme-fail", how, environment=acme)
    assert (done.returncode, done.stderr) == (code, message)


def test_an_interrupt_exits_with_130(acme: dict[str, str]) -> None:
    done = corerl("acme-fail", "interrupt", environment=acme)
    assert done.returncode == 130
    assert done.stderr.strip() == "interrupted"


def test_a_bug_shows_a_short_traceback_and_exits_with_1(acme: dict[str, str]) -> None:
    done = corerl("acme-fail", "bug", environment=acme)
    assert done.returncode == 1
    assert "acme_commands.py" in done.stderr
    assert "ZeroDivisionError: oops" in done.stderr
    assert "this is a bug" in done.stderr.splitlines()[-1]
    assert len(done.stderr.splitlines()) < 25


def test_a_command_that_cannot_be_imported_names_its_owner(acme: dict[str, str]) -> None:
    done = corerl("acme-gone", environment=acme)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: command 'acme-gone' of acme 1.0 cannot be imported from acme_nowhere:gone: Mod"
    )


def test_a_plugin_cannot_take_over_a_command_of_the_core(acme: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "acme_plugin.py").write_text(COMMANDS.replace("acme-login", "train"))
    done = corerl("train", "x.yaml", environment=acme)
    assert done.returncode == 2
    assert f"command 'train' is registered by corerl {__version__} and by acme 1.0" in done.stderr
    assert corerl("acme-fail", "exit", environment=acme).returncode == 7


def test_a_broken_plugin_does_not_disturb_other_commands(acme: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "acme_plugin.py").write_text("raise SystemExit(9)")
    assert corerl("--help", environment=acme).returncode == 0
    assert corerl("--version", environment=acme).returncode == 0
    done = corerl("acme-login", "ada", environment=acme)
    assert done.returncode == 2
    assert "it may be of a broken plugin: acme (SystemExit: 9" in done.stderr
