"""Preparing data sets: sources, counts, duplicates, and files that are written whole or not at all."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corerl.errors import DataError, RequestError
from corerl_tools.prepare.contract import ChatRow, Dropped, PromptRow, text_of
from corerl_tools.prepare.dataset import prepare_dataset

DAPO = Path(__file__).parents[5] / "shared" / "data" / "dapo" / "dapo_math_17k.parquet"


class Trivia:
    """Questions ``q`` with answers ``a``."""

    hub = "acme/trivia:small"

    def __call__(self, record: Mapping[str, Any]) -> PromptRow | Dropped:
        question, answer = text_of(record, "q"), text_of(record, "a")
        if answer == "":
            return Dropped("empty answer")
        note = "a yes" if answer == "yes" else ""
        return PromptRow(
            "acme/trivia", [{"role": "user", "content": question}], "trivia", answer, {"q": question}, note=note
        )


class Made:
    """Three prompts and a conversation."""

    def generate(self) -> dict[str, list[PromptRow | ChatRow]]:
        chat = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "one"}]
        return {"train": [_row("1"), _row("2")], "test": [_row("3")], "sft": [ChatRow(chat)]}


def _row(question: str, truth: Any = "x") -> PromptRow:
    return PromptRow("acme/trivia", [{"role": "user", "content": question}], "trivia", truth)


def write_jsonl(file: Path, rows: Sequence[tuple[str, str]]) -> str:
    file.write_text("".join(json.dumps({"q": question, "a": answer}) + "\n" for question, answer in rows))
    return str(file)


def rows_of(file: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(file).to_pylist()
    return rows


def test_the_columns_are_those_that_training_reads(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "train.jsonl", [("skip", ""), ("sky?", "blue")])
    prepare_dataset(Trivia(), source, tmp_path / "out")
    assert rows_of(tmp_path / "out" / "train.parquet") == [
        {
            "data_source": "acme/trivia",
            "prompt": [{"role": "user", "content": "sky?"}],
            "ability": "trivia",
            "reward_model": {"style": "rule", "ground_truth": "blue"},
            "extra_info": {"split": "train", "index": 1, "q": "sky?"},
        }
    ]


def test_what_training_reads_back_is_what_was_prepared(tmp_path: Path) -> None:
    from corerl.data.report import LoadReport
    from corerl.data.schema import read_prompt_records

    prepare_dataset(Trivia(), write_jsonl(tmp_path / "train.jsonl", [("sky?", "blue")]), tmp_path)
    record = read_prompt_records([str(tmp_path / "train.parquet")], LoadReport())[0]
    assert (record.data_source, record.ground_truth, record.extra_info["index"]) == ("acme/trivia", "blue", 0)


def test_a_folder_gives_its_train_and_test_files_in_order(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train-00001.jsonl", [("c", "3")])
    write_jsonl(tmp_path / "train-00000.jsonl", [("a", "1"), ("b", "2")])
    pq.write_table(pa.table({"q": ["t"], "a": ["4"]}), tmp_path / "acme_test.parquet")
    write_jsonl(tmp_path / "extra.jsonl", [("e", "5")])
    write_jsonl(tmp_path / "training_notes.jsonl", [("n", "6")])
    done = prepare_dataset(Trivia(), str(tmp_path), tmp_path / "out")
    assert [(split.name, split.read) for split in done.splits] == [("train", 3), ("test", 1)]
    assert [row["extra_info"]["q"] for row in rows_of(tmp_path / "out" / "train.parquet")] == ["a", "b", "c"]
    assert done.left_out == ["extra.jsonl", "training_notes.jsonl"]


def test_a_single_file_says_its_split_by_name_or_is_told(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "all.jsonl", [("a", "1")])
    with pytest.raises(DataError, match=r"all\.jsonl: its name contains neither train nor test: set --split"):
        prepare_dataset(Trivia(), source, tmp_path / "out")
    prepare_dataset(Trivia(), source, tmp_path / "out", split="test")
    assert rows_of(tmp_path / "out" / "test.parquet")[0]["extra_info"]["split"] == "test"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"q": "a", "a": "1"}\n{"q": "b", "a"\n', r"train\.jsonl, line 2: is not JSON"),
        ('{"q": "a", "a": "1"}\n\n["b", "2"]\n', r"train\.jsonl, line 3: must be a JSON object, not list"),
        ('{"q": "a", "a": 1}\n', r"train\.jsonl, line 1: column 'a' should hold text, found int"),
        ('{"q": "a", "b": "1"}\n', r"train\.jsonl, line 1: column 'a' should hold text, found only q, b"),
        ("", r"train\.jsonl: has 0 rows"),
        ('{"q": "a", "a": ""}\n', r"none of the 1 rows of train can be used: empty answer \(.*train\.jsonl, line 1\)"),
    ],
)
def test_bad_lines_are_named_and_nothing_is_written(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "train.jsonl").write_text(content)
    with pytest.raises(DataError, match=message):
        prepare_dataset(Trivia(), str(tmp_path / "train.jsonl"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_cut_off_parquet_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "train.parquet"
    pq.write_table(pa.table({"q": ["t"] * 1000, "a": ["4"] * 1000}), file)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"train\.parquet: truncated, damaged"):
        prepare_dataset(Trivia(), str(file), tmp_path / "out")


def test_a_preparer_that_fails_is_reported_with_the_row(tmp_path: Path) -> None:
    class Broken(Trivia):
        def __call__(self, record: Mapping[str, Any]) -> PromptRow | Dropped:
            return _row(record["question"])

    source = write_jsonl(tmp_path / "train.jsonl", [("a", "1")])
    with pytest.raises(DataError, match=r"train\.jsonl, line 1: the preparer failed with KeyError: 'question'"):
        prepare_dataset(Broken(), source, tmp_path / "out")


def test_dropped_and_noted_rows_are_counted_with_their_places(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "train.jsonl", [("a", ""), ("b", "yes"), ("c", ""), ("d", "no")])
    split = prepare_dataset(Trivia(), source, tmp_path / "out").splits[0]
    assert (split.read, len(split.rows)) == (4, 2)
    assert {reason: [place.number for place in places] for reason, places in split.dropped.items()} == {
        "empty answer": [1, 3]
    }
    assert {note: [place.number for place in places] for note, places in split.noted.items()} == {"a yes": [2]}


def test_duplicates_contradictions_and_test_prompts_leave_train(tmp_path: Path) -> None:
    write_jsonl(
        tmp_path / "train.jsonl",
        [("once", "1"), ("twice", "2"), ("twice", "2"), ("both", "3"), ("both", "4"), ("held out", "5")],
    )
    write_jsonl(tmp_path / "test.jsonl", [("held out", "5")])
    train, test = prepare_dataset(Trivia(), str(tmp_path), tmp_path / "out").splits
    assert {reason: len(places) for reason, places in train.dropped.items()} == {
        "duplicate": 1,
        "the same prompt with another ground truth": 2,
        "the prompt is also in test": 1,
    }
    assert [row["extra_info"]["q"] for row in rows_of(tmp_path / "out" / "train.parquet")] == ["once", "twice"]
    assert len(test.rows) == 1


def test_the_contradictions_of_dapo_math_are_found(tmp_path: Path) -> None:
    if not DAPO.is_file():
        pytest.skip("DAPO-Math-17k is not beside the repository, in ../shared/data/dapo")

    class Dapo:
        hub = "acme/dapo"

        def __call__(self, record: Mapping[str, Any]) -> PromptRow | Dropped:
            return PromptRow("dapo", record["prompt"], "math", record["reward_model"]["ground_truth"])

    split = prepare_dataset(Dapo(), str(DAPO), tmp_path, split="train").splits[0]
    # counted by others: 17917 rows, 17290 distinct problems, 11 of them with two ground truths
    assert (split.read, len(split.rows)) == (17917, 17290 - 11)
    assert sum(map(len, split.dropped.values())) == 17917 - 17279


def test_made_data_is_written_with_its_chat_split(tmp_path: Path) -> None:
    prepare_dataset(Made(), None, tmp_path)
    assert len(rows_of(tmp_path / "train.parquet")) == 2
    assert rows_of(tmp_path / "sft.parquet")[0]["messages"][1] == {"role": "assistant", "content": "one"}


def test_made_data_takes_no_source(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="it has neither a source nor --split"):
        prepare_dataset(Made(), "train.jsonl", tmp_path)


def test_ground_truths_of_different_types_are_an_error(tmp_path: Path) -> None:
    class Mixed:
        def generate(self) -> dict[str, list[PromptRow | ChatRow]]:
            return {"train": [_row("a", "1"), _row("b", {"target": 2})]}

    with pytest.raises(DataError, match="the rows of train do not fit one set of column types"):
        prepare_dataset(Mixed(), None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_failure_while_writing_leaves_the_old_files_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    (tmp_path / "train.parquet").write_text("old")

    def fail_at_test(table: pa.Table, path: Path) -> None:
        path.write_text("half")
        if "test" in path.name:
            raise failure

    monkeypatch.setattr(pq, "write_table", fail_at_test)
    with pytest.raises((KeyboardInterrupt, RequestError)):
        prepare_dataset(Made(), None, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["train.parquet"]
    assert (tmp_path / "train.parquet").read_text() == "old"


def test_an_out_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(RequestError, match=r"out: cannot be written"):
        prepare_dataset(Made(), None, tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("source", ["./none", "none.jsonl", "data/none.parquet", "none"])
def test_a_source_that_is_not_there_is_an_error(tmp_path: Path, source: str) -> None:
    with pytest.raises(DataError, match="no such file or folder, and no hub name either"):
        prepare_dataset(Trivia(), source, tmp_path)


def hub(monkeypatch: pytest.MonkeyPatch, data: Any) -> list[tuple[str, str | None]]:
    """Stand in for the package datasets; returns what it is asked for."""
    asked = []

    def load_dataset(path: str, name: str | None) -> Any:
        asked.append((path, name))
        if isinstance(data, Exception):
            raise data
        return data

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr("corerl_tools.prepare.sources.look_for_hub", lambda: None)
    return asked


def test_without_a_source_the_set_comes_from_its_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = hub(monkeypatch, {"train": [{"q": "a", "a": "1"}], "validation": []})
    done = prepare_dataset(Trivia(), None, tmp_path)
    assert asked == [("acme/trivia", "small")]
    assert [split.name for split in done.splits] == ["train"]


def test_another_hub_name_is_read_with_its_own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = hub(monkeypatch, {"test": [{"q": "a", "a": "1"}]})
    prepare_dataset(Trivia(), "other/trivia", tmp_path)
    assert asked == [("other/trivia", None)]


def test_a_hub_out_of_reach_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, ConnectionError("Couldn't reach the hub\nand more"))
    with pytest.raises(
        RequestError, match=r"acme/trivia:small: cannot be read from the hub \(ConnectionError"
    ) as caught:
        prepare_dataset(Trivia(), None, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_hub_set_without_known_splits_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, {"dev": []})
    with pytest.raises(RequestError, match="has neither a train nor a test split, only dev"):
        prepare_dataset(Trivia(), None, tmp_path)


def test_without_datasets_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setattr("corerl_tools.prepare.sources.look_for_hub", lambda: None)
    with pytest.raises(RequestError, match="pip install datasets, or name a local file or folder"):
        prepare_dataset(Trivia(), None, tmp_path)
