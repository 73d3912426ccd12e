"""``corerl plugins``."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from corerl.cli.main import run
from corerl.errors import UnknownNameError
from corerl.plugins import PluginRecord, Plugins
from corerl.registry import Entry, Owner
from corerl_tools.plugin_lists import find, source_of

THIS = Path(__file__)

PLUGIN = """
from dataclasses import dataclass
from typing import Literal

from corerl import hookimpl, option


@dataclass
class TriviaOptions:
    weight: float = option(0.5, "of the score", ge=0, le=1)
    mode: Literal["exact", "loose"] = option("exact", "how answers are compared")
    aliases: list[str] = option(factory=list, help="other spellings")


def trivia(response, ground_truth, data_source, extra_info, *, options):
    return options.weight


def estimate(inputs):
    raise NotImplementedError


@hookimpl
def register_scorers(register):
    register("trivia", trivia, options=TriviaOptions, summary="Acme's trivia", data_sources=("acme/one", "acme/two"))


@hookimpl
def register_advantage_estimators(register):
    register("trivia", estimate, summary="an estimator of the same name", needs={"groups"})


@hookimpl
def register_policy_losses(register):
    register("lazy_loss", "no_such_module_at_all:loss", summary="")
"""


@pytest.fixture
def acme(tmp_path: Path) -> str:
    file = tmp_path / "acme.py"
    file.write_text(PLUGIN)
    return str(file)


def output(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert run(["plugins", *arguments]) == code
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    return json.loads(output(capsys, *arguments, "--json", code=code))


def test_list_shows_names_owners_and_what_is_not_installed(
    capsys: pytest.CaptureFixture[str], acme: str, abacus: None
) -> None:
    lines = [line.split() for line in output(capsys, "list", "--plugin", acme).splitlines()]
    assert ["trivia", acme, "ok", "Acme's", "trivia"] in lines
    assert ["scorer", "(reward.scorer)"] in lines
    assert ["local", "corerl", "0.1.0", "ok", "all", "workers", "in", "this", "process"] in lines
    assert ["abacus", "corerl-abacus", "not", "installed", "pip", "install", "corerl-abacus"] in lines


def test_list_as_json_holds_plugins_and_names(capsys: pytest.CaptureFixture[str], acme: str, abacus: None) -> None:
    listed = as_json(capsys, "list", "--plugin", acme)
    plugin = next(plugin for plugin in listed["plugins"] if plugin["name"] == acme)
    assert plugin == {"name": acme, "version": "", "status": "ok", "module": acme, "error": ""}
    assert {
        "kind": "scorer",
        "name": "trivia",
        "owner": acme,
        "version": "",
        "status": "ok",
        "summary": "Acme's trivia",
    } in listed["names"]
    known = next(name for name in listed["names"] if name["name"] == "abacus")
    assert (known["status"], known["owner"]) == ("not installed", "corerl-abacus")


def test_list_shows_which_scorer_scores_which_data_source(capsys: pytest.CaptureFixture[str], acme: str) -> None:
    lines = output(capsys, "list", "--plugin", acme).splitlines()
    table = [line.split() for line in lines[lines.index("data source -> scorer (reward.scorers)") + 1 :]]
    assert ["acme/one", "trivia"] in table
    assert as_json(capsys, "list", "--plugin", acme)["data_sources"]["acme/two"] == ["trivia"]


def test_list_shows_a_broken_plugin_and_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path, acme: str) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    shown = output(capsys, "list", "--plugin", str(broken), "--plugin", acme)
    assert "broken" in shown
    assert "ZeroDivisionError: division by zero" in shown
    assert "Acme's trivia" in shown


def test_list_shows_both_sides_of_a_clash(capsys: pytest.CaptureFixture[str], tmp_path: Path, acme: str) -> None:
    other = tmp_path / "other.py"
    other.write_text(PLUGIN)
    names = as_json(capsys, "list", "--plugin", acme, "--plugin", str(other))["names"]
    scorers = [name for name in names if name["kind"] == "scorer" and name["name"] == "trivia"]
    assert {(name["owner"], name["status"]) for name in scorers} == {(acme, "clash"), (str(other), "clash")}


def test_list_wraps_at_the_width_of_a_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "long.py").write_text(PLUGIN.replace("Acme's trivia", "words " * 40))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    piped = output(capsys, "list", "--plugin", "long.py")
    assert any(line.count("words") == 40 for line in piped.splitlines())
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    wrapped = output(capsys, "list", "--plugin", "long.py")
    assert wrapped.count("words") == 40
    assert max(map(len, wrapped.splitlines())) <= 80


def test_show_prints_every_entry_of_that_name(capsys: pytest.CaptureFixture[str], acme: str) -> None:
    shown = output(capsys, "show", "trivia", "--plugin", acme)
    assert "scorer trivia" in shown
    assert "advantage estimator trivia" in shown


def test_show_prints_options_source_and_contract(capsys: pytest.CaptureFixture[str], acme: str) -> None:
    (facts,) = as_json(capsys, "show", "scorers/trivia", "--plugin", acme)["names"]
    assert facts["options"] == [
        {"name": "weight", "type": "float", "default": "0.5", "range": ">= 0, <= 1", "help": "of the score"},
        {"name": "mode", "type": "exact|loose", "default": '"exact"', "range": "", "help": "how answers are compared"},
        {"name": "aliases", "type": "list[str]", "default": "[]", "range": "", "help": "other spellings"},
    ]
    line = PLUGIN.splitlines().index("def trivia(response, ground_truth, data_source, extra_info, *, options):") + 1
    assert facts["source"] == f"{acme}:{line}"
    assert facts["facts"]["data_sources"] == ["acme/one", "acme/two"]
    assert facts["contract"].startswith("Scorer: A function, called once a response")
    text = output(capsys, "show", "scorer/trivia", "--plugin", acme)
    for words in ("acme/one, acme/two", "= 0.5", ">= 0, <= 1", f"{acme}:{line}", "ground_truth: "):
        assert words in text


def test_show_names_what_the_trainer_must_provide(capsys: pytest.CaptureFixture[str], acme: str) -> None:
    (facts,) = as_json(capsys, "show", "advantage_estimators/trivia", "--plugin", acme)["names"]
    assert facts["needs"] == ["groups"]


def test_show_a_plugin_prints_everything_it_registers(capsys: pytest.CaptureFixture[str], acme: str) -> None:
    shown = as_json(capsys, "show", acme, "--plugin", acme)
    assert shown["plugin"]["status"] == "ok"
    assert sorted(facts["kind"] for facts in shown["names"]) == ["advantage estimator", "policy loss", "scorer"]


def test_show_something_that_cannot_be_imported_says_why(capsys: pytest.CaptureFixture[str], acme: str) -> None:
    shown = output(capsys, "show", "lazy_loss", "--plugin", acme)
    assert "cannot be imported from no_such_module_at_all:loss: ModuleNotFoundError" in shown


def test_show_an_object_that_is_named_directly(capsys: pytest.CaptureFixture[str], acme: str) -> None:
    (facts,) = as_json(capsys, "show", f"policy_losses/{acme}:estimate")["names"]
    assert (facts["kind"], facts["owner"]) == ("policy loss", acme)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("trivai", "error: no plugin and no registered name is called 'trivai' (did you mean 'trivia'?)"),
        ("scorers/trivai", "error: unknown scorer 'trivai' (did you mean 'trivia'?)"),
        (
            "abacus",
            "error: tracker 'abacus': it comes with corerl-abacus, which is not installed (pip install",
        ),
        ("mine.py:loss", "error: 'mine.py:loss' names no kind: write it as policy_losses/mine.py:loss, say"),
    ],
)
def test_show_an_unknown_name_is_an_error(
    capsys: pytest.CaptureFixture[str], acme: str, abacus: None, name: str, message: str
) -> None:
    assert run(["plugins", "show", name, "--plugin", acme]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_check_prints_each_check_of_a_good_entry(capsys: pytest.CaptureFixture[str], acme: str) -> None:
    lines = output(capsys, "check", "scorers/trivia", "--plugin", acme, "--light").splitlines()
    assert [line.split() for line in lines] == [
        ["scorer", "trivia", check, "ok"] for check in ("name", "summary", "options", "help", "import", "contract")
    ]


def test_check_a_plugin_with_a_fault_fails_and_names_it(capsys: pytest.CaptureFixture[str], acme: str) -> None:
    results = as_json(capsys, "check", acme, "--plugin", acme, "--light", code=1)
    failed = {(result["kind"], result["check"]): result["reason"] for result in results if not result["ok"]}
    assert set(failed) == {("policy loss", "summary"), ("policy loss", "import")}
    assert "FAILED: is empty" in output(capsys, "check", "lazy_loss", "--plugin", acme, "--light", code=1)


def test_check_a_broken_plugin_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    shown = output(capsys, "check", str(broken), "--plugin", str(broken), code=1)
    assert "load  FAILED: ZeroDivisionError: division by zero" in shown


def test_everything_of_the_core_passes_its_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert all(result["ok"] for result in as_json(capsys, "check", "corerl"))


def plain() -> None: ...


@functools.wraps(plain)
def decorated() -> None: ...


class Callable:
    def __call__(self) -> None: ...


@pytest.mark.parametrize("target", [plain, decorated, functools.partial(plain), Callable, Callable()])
def test_the_source_of_a_target_is_the_file_and_line_of_its_definition(target: Any) -> None:
    file, line = source_of(Entry("scorer", "x", target, Owner("acme")))
    assert Path(file) == THIS
    name = "class Callable" if isinstance(target, Callable) or target is Callable else "def plain"
    assert THIS.read_text().splitlines()[line - 1].startswith(name)


def test_the_source_of_something_not_written_in_python_is_unknown() -> None:
    assert source_of(Entry("scorer", "x", "builtins:len", Owner("acme"))) == ("<unknown>", 0)


@pytest.mark.parametrize("command", ["check", "show"])
@pytest.mark.parametrize("name", ["mine", "console"])  # console is installed
def test_a_file_that_cannot_be_imported_is_the_error_whatever_the_name(
    command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import nowhere_at_all\n")
    assert run(["plugins", command, name, "--plugin", str(file)]) == 2
    error = capsys.readouterr().err
    assert f"plugin {file} is broken: ModuleNotFoundError: No module named 'nowhere_at_all' ({file}, line 1)" in error


def test_an_unknown_name_may_be_of_an_installed_plugin_that_is_broken() -> None:
    loaded = Plugins()
    loaded.records.append(PluginRecord("acme", "1.0", "acme.plugin", "broken", "ImportError: no libacme"))
    with pytest.raises(
        UnknownNameError, match=r"'mine'; it may be of a broken plugin: acme \(ImportError: no libacme\)$"
    ):
        find(loaded, "mine")
