"""Rows in files and back."""

import json
from pathlib import Path
from types import MappingProxyType

import pyarrow.parquet as pq
import pytest

from corerl_tools.evaluation.files import as_rows, write_rows


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
