"""Data sets of verl as ``data.custom_cls``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corerl.contracts.config import DataConfig
from corerl.data.custom import custom_rows
from corerl.errors import DataError
from corerl_verl.dataset import Adapted, RLHFDataset, adapted


class Questions(RLHFDataset):
    def _build_messages(self, example: dict[str, Any]) -> Any:
        return [{"role": "user", "content": f"{example['prompt']} ({self.config.get('prompt_key')})"}]


class Whole:
    """A data set with verl's constructor and without its base class."""

    def __init__(self, data_files: Any, tokenizer: Any, config: Any, processor: Any = None) -> None:
        self.rows = config.max_prompt_length

    def __len__(self) -> int:
        return 2

    def __getitem__(self, item: int) -> Mapping[str, Any]:
        chat = [{"role": "user", "content": str(item)}]
        return {"data_source": "s", "raw_prompt": chat, "reward_model": {"ground_truth": "1"}, "index": item}


class Empty(Whole):
    def __getitem__(self, item: int) -> Mapping[str, Any]:
        return {"data_source": "s"}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "t.parquet"
    rows = [{"prompt": f"q{n}", "data_source": "s", "reward_model": {"ground_truth": str(n)}} for n in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def rows(dataset: type[Any], files: list[str], split: str = "train", **data: Any) -> list[dict[str, Any]]:
    return list(adapted(dataset)(files, data=DataConfig(**data), tokenizer=None, split=split))


def test_a_subclass_gives_its_chats_with_the_columns_of_the_file(file: str) -> None:
    found = rows(Questions, [file])
    assert [row["prompt"][0]["content"] for row in found] == [f"q{n} (prompt)" for n in range(3)]
    assert [row["reward_model"]["ground_truth"] for row in found] == ["0", "1", "2"]
    assert len(rows(Questions, [file], "val", val_max_samples=2)) == 2


def test_a_data_set_without_the_base_class_needs_verls_constructor_alone() -> None:
    assert [row["prompt"][0]["content"] for row in rows(Whole, [])] == ["0", "1"]


def test_corerl_reads_the_adapted_class_from_a_file(file: str, tmp_path: Path) -> None:
    module = tmp_path / "corerl_data.py"
    module.write_text("from corerl_verl.dataset import RLHFDataset, adapted\nData = adapted(RLHFDataset)\n")
    table = pa.Table.from_pylist(
        [{"prompt": [{"role": "user", "content": "q"}], "data_source": "s", "reward_model": {"ground_truth": "1"}}]
    )
    pq.write_table(table, tmp_path / "u.parquet")
    data = DataConfig(custom_cls=f"{module}:Data")
    found = custom_rows(data, [str(tmp_path / "u.parquet")], None, "train")
    assert found is not None
    assert dict(found[0][1])["prompt"] == [{"role": "user", "content": "q"}]


def test_a_row_without_a_chat_is_named() -> None:
    with pytest.raises(DataError, match="Empty, row 0: has neither raw_prompt nor prompt"):
        list(Adapted(Empty, [], DataConfig(), None, "train"))
