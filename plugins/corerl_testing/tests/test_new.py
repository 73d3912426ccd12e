"""``corerl new plugin``: what it writes, and what it refuses; tests/integration/test_new_plugin.py uses the plugins."""

import os
import py_compile
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from corerl.cli.main import run
from corerl_testing.new import KINDS, TEMPLATES, render

RULES = ["--select", "E,F,W,I,B,UP,SIM,C4,RET,PTH,RUF", "--ignore", "RUF001,RUF002,RUF003"]


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a request that ends with exit code 2."""
    assert run(["new", "plugin", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["my-{kind}", "zeta-corporation-number-7-{kind}"])
def test_every_template_compiles_and_is_clean(kind: str, name: str, tmp_path: Path) -> None:
    name = name.format(kind=kind)
    assert run(["new", "plugin", name, "--out", str(tmp_path)]) == 0
    folder = tmp_path / name
    for file in folder.rglob("*.py"):
        py_compile.compile(str(file), cfile=str(tmp_path / "compiled"), doraise=True)
    for command in (["check", "--no-cache", *RULES], ["format", "--no-cache", "--check"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *command, str(folder)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_the_entry_point_is_named_like_the_distribution(kind: str) -> None:
    files = render("acme-thing", kind)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert project["name"] == "acme-thing"
    assert project["entry-points"]["corerl"] == {"acme-thing": "acme_thing.plugin"}
    assert project["dependencies"][0] == "corerl>=0.1,<0.2"
    assert "src/acme_thing/plugin.py" in files


@pytest.mark.parametrize("kind", KINDS)
def test_the_conformance_test_is_three_lines(kind: str) -> None:
    lines = render("my-thing", kind)["tests/test_conformance.py"].splitlines()
    assert lines == [
        "from corerl_testing import conformance_tests",
        "",
        'test_conformance = conformance_tests("my-thing")',
    ]


@pytest.mark.parametrize(
    ("kind", "selection"),
    [
        ("reward", {"reward": {"scorer": {"name": "my_thing", "partial": 0.2}}}),
        ("backend", {"rollout": {"n": 4, "name": "my_thing", "options": {"max_batch_size": 16}}}),
    ],
)
def test_the_example_selects_what_the_plugin_registers(kind: str, selection: dict[str, object]) -> None:
    example = yaml.safe_load(render("my-thing", kind)["example.yaml"])
    assert selection.items() <= example.items()


def test_every_file_of_a_template_goes_into_the_wheel() -> None:
    files = [path for path in TEMPLATES.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert {path.suffix for path in files} == {".tmpl"}
    declared = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "templates/**/*.tmpl" in declared["package-data"]["corerl_testing"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["my-reward"], "a scorer (by its name"),
        (["sharp-loss"], "a policy loss (by its name"),
        (["acme-advantages"], "an advantage estimator (by its name"),
        (["far-kl"], "a KL type (by its name"),
        (["my-game"], "an environment (by its name"),
        (["my-agent"], "an agent (by its name"),
        (["acme-engine"], "a rollout backend (by its name"),
        (["my-trainer"], "a training strategy (by its name"),
        (["acme-thing"], "a scorer (the default; --kind makes another: reward, loss,"),
        (["acme-reward", "--kind", "loss"], "a policy loss\n"),
    ],
)
def test_it_says_what_kind_was_chosen_and_why(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["new", "plugin", *arguments, "--out", str(tmp_path)]) == 0
    assert said in capsys.readouterr().out


def test_it_says_what_to_do_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["new", "plugin", "my-reward", "--out", "my plugins"]) == 0
    out = capsys.readouterr().out
    assert [line.strip() for line in out.split("next:\n")[1].splitlines()[:5]] == [
        "cd 'my plugins/my-reward'",
        "pip install -e .",
        "pytest",
        "corerl plugins check my-reward",
        "corerl train example.yaml",
    ]
    assert [path.name for path in Path("my plugins").iterdir()] == ["my-reward"]


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for present in (tmp_path / "my-loss", tmp_path / "your-loss"):
        present.mkdir()
    (tmp_path / "my-loss" / "thesis.tex").write_text("four years")
    for name in ("my-loss", "your-loss"):
        assert f"{tmp_path / name} exists already" in refused([name, "--out", str(tmp_path)], capsys)
    assert (tmp_path / "my-loss" / "thesis.tex").read_text() == "four years"
    assert len(list(tmp_path.rglob("*"))) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MyReward", "such as 'my-reward'"),
        ("my_reward", "such as 'my-reward'"),
        ("my reward!", "such as 'my-reward'"),
        ("-reward-", "such as 'reward'"),
        ("7-losses", "such as 'my-7-losses'"),
        ("../loss", "such as 'loss'"),
        ("", "such as 'my-reward'"),
        ("лосс", "such as 'my-reward'"),
        ("lambda", "'lambda' would be imported as lambda, a keyword of Python: choose another name, such as 'my-"),
        ("json", "'json' would be imported as json, an existing module"),
        ("yaml", "'yaml' would be imported as yaml, an existing module"),
        ("gsm8k", "the scorer 'gsm8k' is registered by corerl-rewards"),
    ],
)
def test_a_name_that_cannot_be_is_refused_with_one_that_can(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(["--out", str(tmp_path), "--", name], capsys)
    assert not list(tmp_path.iterdir())


def test_an_unknown_kind_lists_the_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(["my-thing", "--kind", "reviewer", "--out", str(tmp_path)], capsys)
    assert "'reward', 'loss', 'estimator', 'kl', 'environment', 'agent', 'backend', 'strategy'" in message


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert "--out: " in refused(["my-loss", "--out", str(tmp_path / "file")], capsys)


def test_it_imports_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from corerl.cli.main import run; run(['new', 'plugin', 'my-strategy'])\n"
        "print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={**os.environ}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
