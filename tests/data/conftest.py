"""Prompt files and a loaded tokenizer."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corerl.contracts.config import ModelConfig
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data.tokenizer import load_tokenizer


@pytest.fixture
def write_parquet(tmp_path: Path) -> Callable[..., str]:
    """Writes rows to a parquet file and returns its name."""

    def write(rows: Sequence[Mapping[str, Any]], name: str = "train.parquet") -> str:
        pq.write_table(pa.Table.from_pylist(list(rows)), tmp_path / name)
        return str(tmp_path / name)

    return write


@pytest.fixture
def prompt_row() -> Callable[..., dict[str, Any]]:
    """A correct prompt row; arguments replace its columns."""

    def row(text: str = "1+1", **columns: Any) -> dict[str, Any]:
        return {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": text}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "2"},
            "extra_info": {"index": 7},
        } | columns

    return row


@pytest.fixture(scope="session")
def tokenizer(tiny_tokenizer_dir: Path) -> ChatTokenizer:
    """The tiny tokenizer, loaded."""
    return load_tokenizer(ModelConfig(path=str(tiny_tokenizer_dir)))
