from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corerl.data.files import read_parquet
from corerl.errors import DataError
from corerl_check.jsonl import read_jsonl


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    file = tmp_path / "numbers.parquet"
    pq.write_table(pa.table({"a": [1, 2], "b": ["x", "y"], "c": [None, True]}), file)
    return file


def test_parquet_rows_come_with_their_location_and_only_the_columns_asked_for(numbers: Path) -> None:
    rows = read_parquet(str(numbers), ["b"], ["c", "not_there"])
    assert [(str(location), row) for location, row in rows] == [
        (f"{numbers}, row 0", {"b": "x", "c": None}),
        (f"{numbers}, row 1", {"b": "y", "c": True}),
    ]


def test_a_tilde_is_the_home_folder(numbers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(numbers.parent))
    assert len(read_parquet("~/numbers.parquet", ["a"])) == 2


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.parquet: no such file"):
        read_parquet(str(tmp_path / "nowhere.parquet"), ["a"])


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder, name the files in it"):
        read_parquet(str(tmp_path), ["a"])


def test_a_missing_column_is_named_with_those_that_exist(numbers: Path) -> None:
    with pytest.raises(DataError, match=r"numbers\.parquet: has no column 'promt'; its columns are a, b, c"):
        read_parquet(str(numbers), ["a", "promt"])


def test_a_parquet_without_rows_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "empty.parquet")
    with pytest.raises(DataError, match=r"empty\.parquet: has 0 rows"):
        read_parquet(str(tmp_path / "empty.parquet"), ["a"])


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_truncated_parquet_is_one_line(numbers: Path, share: float) -> None:
    content = numbers.read_bytes()
    numbers.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match=r"numbers\.parquet: truncated, damaged or not a parquet file") as caught:
        read_parquet(str(numbers), ["a"])
    assert "\n" not in str(caught.value)


def test_a_column_whose_name_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "damaged.parquet"
    pq.write_table(pa.table({"abcd": [1], "b": [2]}), file)
    file.write_bytes(file.read_bytes().replace(b"abcd", b"ab\xff\xff"))
    with pytest.raises(DataError, match=r"damaged\.parquet: truncated, damaged or not a parquet file") as caught:
        read_parquet(str(file), ["b"])
    assert "\n" not in str(caught.value)


def test_damaged_pages_behind_a_good_footer_are_an_error(tmp_path: Path) -> None:
    file = tmp_path / "damaged.parquet"
    pq.write_table(pa.table({"text": [f"row {number} " * 50 for number in range(500)]}), file)
    content = bytearray(file.read_bytes())
    content[100:2000] = b"\xff" * 1900
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"damaged\.parquet: truncated, damaged or not a parquet file"):
        read_parquet(str(file), ["text"])


def test_text_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "latin.parquet"
    column = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xe9\xff")])
    pq.write_table(pa.table({"text": column}), file)
    with pytest.raises(DataError, match=r"latin\.parquet: .*UTF8"):
        read_parquet(str(file), ["text"])


def test_jsonl_lines_count_from_one_and_empty_ones_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": 1}\n\n{"a": 2}\n')
    assert [(str(location), row) for location, row in read_jsonl(str(file))] == [
        (f"{file}, line 1", {"a": 1}),
        (f"{file}, line 3", {"a": 2}),
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "has 0 rows"),
        (b"\n \n", "has 0 rows"),
        (b'{"a": 1}\n{"a": ', "line 2: is not JSON, or was cut off"),
        (b"[1]\n", "line 1: must be a JSON object, not list"),
        (b'{"a": "\xff"}\n', "is not UTF-8 text"),
    ],
)
def test_a_wrong_jsonl_is_an_error_with_its_line(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=problem):
        read_jsonl(str(tmp_path / "rows.jsonl"))


@pytest.mark.parametrize("line", ["[" * 100_000, "9" * 5000])
def test_json_that_python_cannot_hold_is_an_error_with_its_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "deep.jsonl").write_text(line)
    with pytest.raises(DataError, match=r"deep\.jsonl, line 1: is not JSON"):
        read_jsonl(str(tmp_path / "deep.jsonl"))
