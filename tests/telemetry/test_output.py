"""Nothing that comes from data can control the terminal."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import corerl
from corerl.cli.main import run
from corerl.terminal.output import echo, printable
from corerl_tools.common import table

SEQUENCES = ("\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\r", "\x08", "\x7f", "\u202e", "\u2066", "\u200b", "\ufeff")


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_control_sequences_become_visible(sequence: str) -> None:
    shown = printable(f"a{sequence}b\n\tc")
    assert shown.isascii() and shown.startswith("a\\") and shown.endswith("b\n\tc")
    assert table([("a\nb\tc",)], indent="") == "a\\nb\\tc"


def test_half_a_character_which_no_terminal_takes_is_an_escape() -> None:
    assert printable("a\ud800") == "a\\ud800"


def test_ordinary_text_stays() -> None:
    text = "€ 汉字 عربي é 🙂 ▸ ━ — “”\n\tend"
    assert printable(text) == text


def test_no_command_prints_another_way() -> None:
    found = []
    for file in (Path(corerl.__file__).parent / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "click.echo", "click.secho"):
                found.append(f"{file.name}:{node.lineno}")
    assert found == []


def rows(folder: Path, evil: str) -> str:
    row = {
        "data_source": f"source{evil}",
        "prompt": [{"role": "user", "content": f"1 + 1{evil}"}],
        "ability": evil,
        "reward_model": {"style": "rule", "ground_truth": f"2{evil}"},
        "extra_info": {"index": 0, "note": evil},
    }
    pq.write_table(pa.Table.from_pylist([row, row]), folder / "rows.parquet")
    return str(folder / "rows.parquet")


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_data_inspect_prints_no_control_sequence(
    tmp_path: Path, sequence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["data", "inspect", rows(tmp_path, sequence)])
    run(["data", "inspect", str(tmp_path / f"missing{sequence.replace('/', '')}.parquet")])
    captured = capsys.readouterr()
    assert "source" in captured.out and "missing" in captured.err
    assert not any(each in captured.out + captured.err for each in SEQUENCES)


def test_a_data_source_cannot_forge_a_line_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["data", "inspect", rows(tmp_path, "\nerror: forged")])
    assert "\nerror: forged" not in capsys.readouterr().out.partition("ground truth")[0]


def test_json_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    value: dict[str, Any] = {"text": "a\x1b\n\t€"}
    echo(json.dumps(value))
    assert json.loads(capsys.readouterr().out) == value


QUOTING = """
import logging, sys, warnings
from corerl.cli import main as program
evil = sys.argv.pop()
def run():
    logging.getLogger("a.library").warning("a model of type %s", evil)
    warnings.warn(f"a model of type {evil}")
    return 0
program.run = run
program.main()
"""


def test_logs_and_warnings_of_libraries_have_no_control_sequence() -> None:
    """As transformers quotes the ``model_type`` of a config.json."""
    command = [sys.executable, "-c", QUOTING, "x\x1b[2J\x9b31m"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr.count("a model of type x\\x1b[2J\\x9b31m") == 2
    assert "\x1b" not in done.stderr and "\x9b" not in done.stderr
