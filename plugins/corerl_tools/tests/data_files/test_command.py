"""``corerl data inspect``."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corerl.cli.main import run
from corerl_tools.data_files.inspection import inspect_files

for plugin in ("corerl_rewards", "corerl_grpo", "corerl_fsdp", "corerl_hf"):
    pytest.importorskip(plugin)

SHARED = Path(__file__).parents[5] / "shared" / "data"


def row(text: str, truth: Any = "2", **columns: Any) -> dict[str, Any]:
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": text}],
        "reward_model": {"style": "rule", "ground_truth": truth},
    } | columns


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)

    def to_file(rows: Sequence[dict[str, Any]], name: str = "in.parquet") -> str:
        pq.write_table(pa.Table.from_pylist(list(rows)), name)
        return name

    return to_file


def test_columns_sources_scorers_lengths_and_a_rendered_row(
    write: Callable[..., str], tiny_tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write([row("1+1"), row("10+10"), row("2+3", data_source="acme/sums")])
    assert run(["data", "inspect", file, "--model", str(tiny_tokenizer_dir), "--max-length", "22"]) == 0
    out = capsys.readouterr().out
    assert "in.parquet: 3 rows" in out
    assert "reward_model  struct<ground_truth: string, style: string>" in out or "struct<style: string" in out
    assert "openai/gsm8k  2     gsm8k (corerl-rewards" in out
    assert "acme/sums     1     nobody" in out
    assert "from 22 to 24, median 22" in out  # 4 special tokens, "user\n", "\n", "assistant\n", and the text
    assert "1 (33.33%) above 22" in out
    assert "<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n" in out
    assert "1 prompts longer than 22 tokens: in.parquet, row 1\n    24 tokens" in out
    assert "data source 'acme/sums' is scored by nobody" in out


def test_every_defect_is_counted_with_its_first_rows(write: Callable[..., str]) -> None:
    rows = [
        *(row("1+1"), row("1+1"), row("1+1")),
        *(row("x?", "3"), row("x?", "4")),
        *(row("empty", ""), row("blank", " "), row("null", None)),
        row("no messages", prompt=[]),
        row("no source", data_source=None),
    ]
    defects = inspect_files([write(rows)]).defects
    assert {kind: (len(found), [place.number for place in found[:3]]) for kind, found in defects.found.items()} == {
        "empty ground truths, which training leaves out": (3, [5, 6, 7]),
        "rows of a wrong type": (2, [8, 9]),
        "prompts in several rows": (1, [0]),
        "prompts with different ground truths": (1, [3]),
    }
    assert defects.notes["prompts with different ground truths"] == ["3 and 4 in in.parquet, row 3; row 4: x?"]
    assert "column 'data_source': must be a non-empty string" in defects.notes["rows of a wrong type"][1]


def test_the_same_words_about_other_images_are_another_prompt(write: Callable[..., str]) -> None:
    rows = [row("what is it?", truth, images=[{"bytes": truth.encode()}]) for truth in ("cat", "dog")]
    assert not inspect_files([write(rows)]).defects.found


def test_a_missing_column_is_a_defect_and_the_other_files_are_read(
    write: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    without = {name: value for name, value in row("1+1").items() if name != "reward_model"}
    assert run(["data", "inspect", write([without], "a.parquet"), write([row("1+1")], "b.parquet")]) == 0
    out = capsys.readouterr().out
    assert "a.parquet: no column 'reward_model'" in out
    assert "openai/gsm8k  1" in out


def test_strict_makes_defects_an_error(write: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "inspect", write([row("1+1", "")]), "--strict"]) == 1
    assert "in.parquet" in capsys.readouterr().err
    assert run(["data", "inspect", write([row("1+1")]), "--strict"]) == 0
    assert "no defects" in capsys.readouterr().out


def test_a_file_that_is_damaged_is_an_error(write: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("cut.parquet").write_bytes(b"PAR1")
    assert run(["data", "inspect", "cut.parquet"]) == 2
    assert "cut.parquet: truncated, damaged" in capsys.readouterr().err


def test_a_limit_needs_a_tokenizer(write: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "inspect", write([row("1+1")]), "--max-length", "5"]) == 2
    assert "--model" in capsys.readouterr().err


def test_json_lines_are_inspected_too(write: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    import json

    Path("in.jsonl").write_text(json.dumps(row("1+1")) + "\n" + json.dumps(row("1+1", 3)) + "\n")
    assert run(["data", "inspect", "in.jsonl"]) == 0
    out = capsys.readouterr().out
    assert "prompts with different ground truths: in.jsonl, line 1" in out


@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder ../shared/data is absent")
def test_the_eleven_problems_of_dapo_with_two_answers_are_found() -> None:
    found = inspect_files([str(SHARED / "dapo" / "dapo_math_17k.parquet")])
    assert len(found.records) == 17917
    assert len({str(record.messages) for record in found.records}) == 17290
    assert len(found.defects.found["prompts with different ground truths"]) == 11
