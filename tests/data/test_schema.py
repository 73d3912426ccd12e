import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corerl.data.report import LoadReport
from corerl.data.schema import PromptRecord, read_prompt_records
from corerl.errors import DataError

SHARED = Path(__file__).parents[3] / "shared" / "data"
needs_shared_data = pytest.mark.skipif(not SHARED.is_dir(), reason="the folder ../shared/data is absent")


def read(*files: str, max_rows: int | None = None) -> tuple[list[PromptRecord], LoadReport]:
    report = LoadReport()
    return read_prompt_records(files, report, max_rows), report


def test_rows_of_several_files_follow_each_other(
    write_parquet: Callable[..., str], prompt_row: Callable[..., Any]
) -> None:
    first = write_parquet([prompt_row("a"), prompt_row("b")], "first.parquet")
    second = write_parquet([prompt_row("c")], "second.parquet")
    records, report = read(first, second)
    assert [(record.messages[0]["content"], str(record.location)) for record in records] == [
        ("a", f"{first}, row 0"),
        ("b", f"{first}, row 1"),
        ("c", f"{second}, row 0"),
    ]
    assert (records[0].data_source, records[0].ground_truth, records[0].extra_info) == ("sums", "2", {"index": 7})
    assert (report.rows_read, report.kept) == (3, 3)


def test_max_rows_counts_over_all_files(write_parquet: Callable[..., str], prompt_row: Callable[..., Any]) -> None:
    files = [write_parquet([prompt_row(), prompt_row()], name) for name in ("a.parquet", "b.parquet")]
    records, report = read(*files, max_rows=3)
    assert (len(records), report.rows_read) == (3, 3)


def test_extra_info_and_ability_may_be_missing(
    write_parquet: Callable[..., str], prompt_row: Callable[..., Any]
) -> None:
    row = prompt_row()
    del row["extra_info"], row["ability"]
    records, _ = read(write_parquet([row]))
    assert records[0].extra_info == {}


def test_further_message_fields_reach_the_template_unless_null(
    write_parquet: Callable[..., str], prompt_row: Callable[..., Any]
) -> None:
    messages = [{"role": "user", "content": "a", "name": "Ann"}, {"role": "user", "content": "b", "name": None}]
    records, _ = read(write_parquet([prompt_row(prompt=messages)]))
    assert records[0].messages == [{"role": "user", "content": "a", "name": "Ann"}, {"role": "user", "content": "b"}]


@pytest.mark.parametrize("empty", [None, "", " \n", float("nan"), {"target": None, "numbers": []}])
def test_rows_with_an_empty_ground_truth_are_skipped_and_counted(
    write_parquet: Callable[..., str], prompt_row: Callable[..., Any], empty: object
) -> None:
    full = {"target": 3, "numbers": [1, 2]} if isinstance(empty, dict) else 3.5 if isinstance(empty, float) else "3"
    rows = [prompt_row(reward_model={"ground_truth": truth}) for truth in (full, empty, full, empty)]
    file = write_parquet(rows)
    records, report = read(file)
    assert [record.location.number for record in records] == [0, 2]
    assert str(report) == (f"4 rows read, 2 kept\n  2 skipped, empty reward_model.ground_truth ({file}, row 1; row 3)")


@pytest.mark.parametrize("answer", [0, False, 0.0, "0"])
def test_zero_and_false_are_answers(
    write_parquet: Callable[..., str], prompt_row: Callable[..., Any], answer: object
) -> None:
    _, report = read(write_parquet([prompt_row(reward_model={"ground_truth": answer})]))
    assert report.kept == 1


def messages(*items: object) -> dict[str, Any]:
    return {"prompt": list(items)}


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"data_source": None}, "row 1, column 'data_source': must be a non-empty string, not null"),
        ({"data_source": ""}, "row 1, column 'data_source': must be a non-empty string, not str ''"),
        (messages(), "row 1, column 'prompt': has no messages"),
        ({"prompt": None}, "row 1, column 'prompt': has no messages"),
        (messages({"role": "user", "content": None}), "row 1, column 'prompt', message 0: has no content"),
        (messages({"role": None, "content": "a"}), "row 1, column 'prompt', message 0: has no role"),
        (
            messages({"role": "user", "content": "a"}, {"role": "usr", "content": "b"}),
            "row 1, column 'prompt', message 1: unknown role 'usr' (did you mean 'user'?); roles are system, ",
        ),
        ({"reward_model": None}, "row 1, column 'reward_model': must be a struct {style, ground_truth}, not null"),
    ],
)
def test_a_wrong_row_is_named_with_its_column(
    write_parquet: Callable[..., str], prompt_row: Callable[..., Any], columns: dict[str, Any], problem: str
) -> None:
    file = write_parquet([prompt_row(), prompt_row(**columns)])
    with pytest.raises(DataError, match=re.escape(f"{file}, {problem}")):
        read(file)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"data_source": 3}, "row 0, column 'data_source': must be a non-empty string, not int 3"),
        (
            {"prompt": "What is 1 + 1? Answer with one number, please."},
            "row 0, column 'prompt': must be a list of messages {role, content}, "
            "not str 'What is 1 + 1? Answer with one number, …",
        ),
        (messages("a"), "row 0, column 'prompt', message 0: must be a struct {role, content}, not str 'a'"),
        (messages({"role": "user"}), "row 0, column 'prompt', message 0: has no content"),
        (
            messages({"role": "user", "content": ["a"]}),
            "row 0, column 'prompt', message 0: content must be a string, or parts {type, …}, not list ['a']",
        ),
        ({"reward_model": "2"}, "row 0, column 'reward_model': must be a struct {style, ground_truth}, not str '2'"),
        (
            {"reward_model": {"style": "rule"}},
            "row 0, column 'reward_model': must be a struct {style, ground_truth}, not dict {'style': 'rule'}",
        ),
        ({"extra_info": "hint"}, "row 0, column 'extra_info': must be a struct or null, not str 'hint'"),
    ],
)
def test_a_column_of_the_wrong_type_is_named_with_its_first_row(
    write_parquet: Callable[..., str], prompt_row: Callable[..., Any], columns: dict[str, Any], problem: str
) -> None:
    file = write_parquet([prompt_row(**columns)])
    with pytest.raises(DataError, match=re.escape(f"{file}, {problem}")):
        read(file)


@needs_shared_data
def test_dapo_is_read_whole() -> None:
    records, report = read(str(SHARED / "dapo" / "dapo_math_17k.parquet"))
    assert (len(records), report.rows_read) == (17917, 17917)
    assert records[0].ground_truth == "34"


@needs_shared_data
@pytest.mark.parametrize(("file", "rows"), [("tinyzero_train.parquet", 8001), ("tinyzero_test.parquet", 2001)])
def test_countdown_has_structs_as_ground_truth(file: str, rows: int) -> None:
    records, _ = read(str(SHARED / "countdown" / file))
    assert len(records) == rows
    assert set(records[0].ground_truth) == {"numbers", "target"}
