"""``corerl prepare``, with preparers from a plugin file: no distribution is needed."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from corerl.cli.main import run

PLUGIN = """
from dataclasses import dataclass

from corerl import hookimpl, option
from corerl_tools.prepare.contract import Dropped, PromptRow, text_of


@dataclass
class Options:
    limit: int = option(3, "longest answer", ge=1)


class Trivia:
    hub = "acme/trivia"

    def __init__(self, options):
        self.limit = options.limit

    def __call__(self, record):
        answer = text_of(record, "a")
        if len(answer) > self.limit:
            return Dropped("long answer")
        return PromptRow("acme/trivia", [{"role": "user", "content": text_of(record, "q")}], "trivia", answer)


@hookimpl
def register_dataset_preparers(register):
    register("trivia", Trivia, options=Options, summary="Acme's questions")
    register("heavy", "no_such_module:Heavy", summary="imported only when called")
"""


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    file = tmp_path / "plugin.py"
    file.write_text(PLUGIN)
    return str(file)


@pytest.fixture
def source(tmp_path: Path) -> str:
    file = tmp_path / "train.jsonl"
    rows = [{"q": "sky?", "a": "blue"}, {"q": "1+1?", "a": "2"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_help_lists_the_preparers_and_imports_none(plugin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prepare", "--plugin", plugin, "--help"]) == 0
    out = capsys.readouterr().out
    assert "Acme's questions" in out
    assert "imported only when called" in out


def test_options_of_the_preparer_are_flags(plugin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prepare", "--plugin", plugin, "trivia", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "--limit int longest answer [default: 3, >= 1]" in out


def test_counts_and_reasons_are_printed(
    plugin: str, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(["prepare", "--plugin", plugin, "trivia", source, "--out", str(out)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["split", "read", "written", "dropped", "noted", "why"]
    assert lines[1] == ["train", "2", "1", "1", "0"]
    assert lines[2][:3] == ["1", "long", "answer"]
    assert pq.read_table(out / "train.parquet").num_rows == 1


def test_a_flag_reaches_the_preparer(plugin: str, source: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(["prepare", "--plugin", plugin, "trivia", source, "--out", str(out), "--limit", "4"]) == 0
    assert pq.read_table(out / "train.parquet").num_rows == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trivai", "--out", "x"], "unknown dataset preparer 'trivai' (did you mean 'trivia'?)"),
        (["trivia", "none.jsonl", "--out", "x"], "none.jsonl: no such file or folder"),
        (["trivia", "--out", "x", "--limit", "0"], "trivia.limit: must be at least 1, not 0"),
        (["trivia", "--out", "x", "--limit", "many"], "trivia.limit: must be an integer, not 'many'"),
        (["trivia", "none.jsonl"], "Missing option '--out'"),
        (["heavy", "--out", "x"], "dataset preparer 'heavy'"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(
    plugin: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["prepare", "--plugin", plugin, *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_the_list_of_preparers_needs_neither_torch_nor_pyarrow() -> None:
    program = (
        "import sys; from corerl.cli.main import run; run(['prepare', '--help'])\n"
        "print([name for name in ('torch', 'transformers', 'pyarrow', 'sympy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
