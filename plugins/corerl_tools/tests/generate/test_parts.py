from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corerl.errors import ConfigError, RequestError
from corerl_tools.generate.parts import PartedFile

REQUEST = {"model": "a", "seed": 0}


def table(items: range) -> pa.Table:
    return pa.table({"item": list(items)}).replace_schema_metadata({"kind": "items"})


def parted(tmp_path: Path, total: int = 10, **changed: object) -> PartedFile:
    overwrite = bool(changed.pop("overwrite", False))
    return PartedFile(tmp_path / "out.parquet", REQUEST | changed, total, overwrite=overwrite)


def test_what_no_part_holds_is_missing(tmp_path: Path) -> None:
    file = parted(tmp_path)
    assert file.missing() == [range(0, 10)]
    for items in (range(2, 4), range(4, 5), range(8, 10)):
        file.write(items, table(items))
    assert parted(tmp_path).missing() == [range(0, 2), range(5, 8)]


def test_the_file_is_all_parts_in_order_with_their_metadata(tmp_path: Path) -> None:
    file = parted(tmp_path)
    file.missing()
    for items in (range(6, 10), range(0, 2), range(2, 6)):
        file.write(items, table(items))
    assert not file.is_complete()
    file.join()
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.column("item").to_pylist() == list(range(10))
    assert written.schema.metadata[b"kind"] == b"items"
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]
    assert parted(tmp_path).is_complete()


def test_parts_that_outlived_the_file_are_removed(tmp_path: Path) -> None:
    """The kill came after the file, before its parts were gone."""
    file = parted(tmp_path, 2)
    file.missing()
    file.write(range(2), table(range(2)))
    file.join()
    file.missing()
    file.write(range(2), table(range(2)))
    assert parted(tmp_path, 2).is_complete()
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]


def test_a_folder_that_holds_nothing_yet_is_a_beginning(tmp_path: Path) -> None:
    (tmp_path / "out.parquet.parts").mkdir()
    assert parted(tmp_path).missing() == [range(10)]


def test_another_request_is_refused_by_name_and_dropped_with_overwrite(tmp_path: Path) -> None:
    file = parted(tmp_path)
    file.missing()
    file.write(range(4), table(range(4)))
    with pytest.raises(ConfigError, match=r"another seed \(0, and now 1\); --overwrite drops them"):
        parted(tmp_path, seed=1).missing()
    assert parted(tmp_path).missing() == [range(4, 10)]
    assert parted(tmp_path, seed=1, overwrite=True).missing() == [range(10)]


def test_with_overwrite_too_the_parts_of_the_same_request_are_kept(tmp_path: Path) -> None:
    file = parted(tmp_path, overwrite=True)
    file.missing()
    file.write(range(4), table(range(4)))
    assert parted(tmp_path, overwrite=True).missing() == [range(4, 10)]


def test_a_file_of_somebody_elses_is_not_replaced_unasked(tmp_path: Path) -> None:
    pq.write_table(table(range(3)), tmp_path / "out.parquet")
    with pytest.raises(ConfigError, match="was not written by this command; --overwrite replaces it"):
        parted(tmp_path).is_complete()
    assert not parted(tmp_path, overwrite=True).is_complete()


def test_a_damaged_part_and_a_damaged_request_are_named(tmp_path: Path) -> None:
    file = parted(tmp_path)
    file.missing()
    for items in (range(0, 5), range(5, 10)):
        file.write(items, table(items))
    folder = tmp_path / "out.parquet.parts"
    for part in sorted(folder.glob("part-*")):
        whole = part.read_bytes()
        part.write_bytes(bytes(len(whole)))
        with pytest.raises(RequestError, match=f"{part.name} is damaged"):
            file.join()
        part.write_bytes(whole)
    (folder / "request.json").write_bytes(bytes(100))
    with pytest.raises(RequestError, match=r"request.json is damaged"):
        parted(tmp_path).missing()
