"""Rows in files and back."""

import json
from pathlib import Path
from types import MappingProxyType

import pyarrow.parquet as pq
import pytest

from corerl_tools.evaluation.files import as_rows, read_responses, write_rows


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
def test_values_that_rows_share_and_values_that_only_look_alike_come_back(tmp_path: Path, name: str) -> None:
    shared, proxy = [{"role": "user", "content": "é"}], MappingProxyType({"index": 3})
    rows = [
        {"prompt": shared, "extra_info": proxy, "ground_truth": None, "score": 1.0},
        {"prompt": shared, "extra_info": proxy, "ground_truth": 1, "score": 0.0},
        {"prompt": [], "extra_info": {}, "ground_truth": True, "score": None},
        {"prompt": [], "extra_info": {}, "ground_truth": "1", "score": 0.5},
        {"prompt": shared, "extra_info": proxy, "ground_truth": None, "score": 0.5},
    ]
    write_rows(tmp_path / name, rows)
    expected = [{**row, "extra_info": dict(row["extra_info"])} for row in rows]
    if name.endswith("parquet"):
        assert as_rows(pq.read_table(tmp_path / name)) == expected
    else:
        assert [json.loads(line) for line in (tmp_path / name).read_text().splitlines()] == expected


def prompts(tmp_path: Path, *rows: dict[str, object]) -> list[object]:
    file = tmp_path / "responses.jsonl"
    write_rows(file, [{"data_source": "s", "response": "r", **row} for row in rows])
    return [response.prompt for response in read_responses([str(file)])]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"ground_truth": "4"}, {"ground_truth": "4"}, False),  # two questions may have one answer
        ({}, {}, False),
        ({"prompt": "p"}, {"prompt": "p"}, True),
        ({"prompt": "p"}, {"prompt": "q"}, False),
        ({"prompt": "p", "ground_truth": "4"}, {"prompt": "p", "ground_truth": "5"}, False),
        ({"prompt": "p", "prompt_index": 0}, {"prompt": "p", "prompt_index": 1}, False),
        ({"prompt_index": 0}, {"prompt_index": 0}, True),
        ({"prompt": "p", "images": ["a.png"]}, {"prompt": "p", "images": ["b.png"]}, False),
        ({"group": 0}, {"group": 0}, True),
        ({"group": 0}, {"group": 1}, False),
    ],
)
def test_rows_are_of_one_prompt_by_what_names_it_and_never_by_their_answer(
    tmp_path: Path, one: dict[str, object], other: dict[str, object], same: bool
) -> None:
    first, second = prompts(tmp_path, one, other)
    assert (first == second) is same


def test_responses_in_one_row_are_of_one_prompt(tmp_path: Path) -> None:
    file = tmp_path / "responses.jsonl"
    write_rows(file, [{"data_source": "s", "responses": ["a", "b"]}, {"data_source": "s", "responses": ["a"]}])
    responses = read_responses([str(file)])
    assert responses[0].prompt == responses[1].prompt != responses[2].prompt
    assert not responses[0].has_prompt
