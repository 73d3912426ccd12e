"""Parquet files and a loaded tokenizer."""

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

    def write(rows: Sequence[Mapping[str, Any]]) -> str:
        pq.write_table(pa.Table.from_pylist(list(rows)), tmp_path / "train.parquet")
        return str(tmp_path / "train.parquet")

    return write


@pytest.fixture(scope="session")
def tokenizer(tiny_tokenizer_dir: Path) -> ChatTokenizer:
    """The tiny tokenizer, loaded."""
    return load_tokenizer(ModelConfig(path=str(tiny_tokenizer_dir)))
