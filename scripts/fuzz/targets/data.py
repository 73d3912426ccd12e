"""Parquet and JSONL files of prompts and conversations."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from corerl.contracts.config import DataConfig, ModelConfig
from corerl.data.prompts import load_prompts
from corerl.data.tokenizer import load_tokenizer
from corerl.errors import CoreRLError
from corerl_supervised.data.conversations import load_chat
from corerl_testing.tiny_model import write_byte_tokenizer
from scripts.fuzz import mutations
from scripts.fuzz.command import corerl

ROW = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}],
    "messages": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}],
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"index": 0, "split": "train"},
}

COLUMNS: dict[str, Callable[[], pa.Array]] = {
    "dates far off": lambda: pa.array([2**62, -(2**62)], pa.timestamp("s")),
    "nanoseconds": lambda: pa.array([1, 2**62 + 1], pa.timestamp("ns")),
    "no such zone": lambda: pa.array([1, 2], pa.timestamp("s", tz="Mars/Olympus")),
    "days far off": lambda: pa.array([2**30, -(2**30)], pa.date32()),
    "durations": lambda: pa.array([2**62, 1], pa.duration("s")),
    "decimals": lambda: pa.array([None, 1], pa.decimal128(38, -5)),
    "bytes": lambda: pa.array([b"\x80\x04\x95", b""], pa.binary()),
    "dictionary": lambda: pa.array(["a", "b"]).dictionary_encode(),
    "nulls": lambda: pa.nulls(2),
    "map": lambda: pa.array([[("a", 1)], [("a", 2)]], pa.map_(pa.string(), pa.int64())),
    "map twice": lambda: pa.array([[("role", "a"), ("role", "b")]] * 2, pa.map_(pa.string(), pa.string())),
    "half": lambda: pa.array([1.0, float("nan")], pa.float32()).cast(pa.float16()),
    "fields twice": lambda: pa.StructArray.from_arrays([pa.array([1, 2]), pa.array([3, 4])], names=["role", "role"]),
    "no fields": lambda: pa.array([{}, {}], pa.struct([])),
    "list": lambda: pa.array([[1], None], pa.list_(pa.int8())),
    "not UTF-8": lambda: pa.array([b"\xff\xfe", b"a"], pa.binary()).view(pa.string()),
    "pickled": lambda: pa.ExtensionArray.from_storage(_Extension(), pa.array([b"cos\nsystem\n(S'id'\ntR.", b""])),
    "uuid": lambda: pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16] * 2, pa.binary(16))),
    "deep": lambda: _deep(200),
    "json": lambda: pa.array(['{"a": NaN}', "[" * 9999]),
}


class _Extension(pa.ExtensionType):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(pa.binary(), "pandas.object")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"cos\nsystem\n(S'true'\ntR."

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> "_Extension":
        return cls()


def _deep(levels: int) -> pa.Array:
    array = pa.array([1, 2])
    for _ in range(levels):
        array = pa.StructArray.from_arrays([array], names=["a"])
    return array


class Data:
    """See :class:`scripts.fuzz.targets.Target`."""

    name, seconds, processes = "data", 20.0, False
    cases = st.one_of(
        st.tuples(st.just("jsonl rows"), mutations.edits),
        st.tuples(st.just("parquet rows"), mutations.edits),
        st.tuples(st.just("parquet bytes"), mutations.cuts),
        st.tuples(st.just("jsonl bytes"), mutations.cuts),
        st.tuples(st.just("jsonl text"), st.sampled_from(sorted(mutations.DEEP))),
        st.tuples(st.just("column"), st.tuples(st.sampled_from(sorted(ROW)), st.sampled_from(sorted(COLUMNS)))),
    )

    def prepare(self, folder: Path) -> None:
        write_byte_tokenizer(folder / "tokenizer")
        self.model = str(folder / "tokenizer")
        self.tokenizer = load_tokenizer(ModelConfig(self.model))
        pq.write_table(pa.Table.from_pylist([ROW, ROW]), folder / "good.parquet")
        self.good = (folder / "good.parquet").read_bytes()

    def read(self, case: Any, folder: Path) -> None:
        kind, given = case
        file = str(folder / f"file.{kind.split()[0] if kind != 'column' else 'parquet'}")
        if not self._write(kind, given, Path(file)):
            return
        config = DataConfig(train_files=[file], max_prompt_length=50, truncation="left")
        for read in (
            lambda: load_prompts(config, [file], self.tokenizer, "train"),
            lambda: load_chat([file], self.tokenizer, 1000),
        ):
            if file.endswith("jsonl") or kind != "jsonl":
                try:
                    read()
                except CoreRLError as error:
                    assert "\n" not in str(error), error
        corerl("data", "inspect", file)
        corerl("data", "inspect", file, "--model", self.model, "--rows", "5")

    def _write(self, kind: str, given: Any, file: Path) -> bool:
        """False if pyarrow cannot write such a file."""
        lines = "".join(json.dumps(ROW) + "\n" for _ in range(2))
        if kind == "jsonl rows":
            file.write_text("".join(json.dumps(row) + "\n" for row in mutations.changed([ROW, ROW], given)))
        elif kind == "jsonl text":
            file.write_text(mutations.DEEP[given])
        elif kind == "jsonl bytes":
            file.write_bytes(mutations.damaged(lines.encode(), given))
        elif kind == "parquet bytes":
            file.write_bytes(mutations.damaged(self.good, given))
        else:
            try:
                if kind == "column":
                    name, column = given
                    table = pa.Table.from_pylist([ROW, ROW])
                    table = table.set_column(table.schema.get_field_index(name), name, COLUMNS[column]())
                else:
                    table = pa.Table.from_pylist([mutations.changed(ROW, given)] * 2)
                pq.write_table(table, file)
            except (pa.ArrowException, OverflowError, UnicodeError, TypeError, AttributeError, ValueError):
                return False
        return True
