"""Rows from parquet files, each with its location."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from corerl.contracts.options import did_you_mean
from corerl.data.report import Location
from corerl.errors import DataError
from corerl.files import atomic_path
from corerl.terminal.notices import part

Row = tuple[Location, Mapping[str, Any]]


def read_parquet(file: str, required: Sequence[str], optional: Sequence[str] | None = ()) -> list[Row]:
    """The named columns of one parquet file; ``~`` is the home folder.

    Args:
        optional: None: all other columns.

    Raises:
        DataError: the file is missing, damaged or empty, or a required column is missing.
    """
    return located_rows(file, read_parquet_file(file, required, optional))


def located_rows(file: str, table: Any) -> list[Row]:
    """The rows of a pyarrow table that was read from ``file``.

    Raises:
        DataError: Python has no such value: a date beyond the year 9999, an unknown time zone, a field twice.
    """
    try:
        rows = table.to_pylist(maps_as_pydicts="strict")
    except Exception as error:  # each type of pyarrow has errors of its own
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise DataError(f"{file}: holds a value that cannot be read, write the column as text ({reason})") from error
    return [(Location(file, number), row) for number, row in enumerate(rows)]


@part("reading a data file")
def read_parquet_file(file: str, required: Sequence[str] = (), optional: Sequence[str] | None = None) -> Any:
    """As :func:`read_parquet`, as a pyarrow table."""
    path = existing(file)
    try:
        with pq.ParquetFile(path) as parquet:
            present = parquet.schema_arrow.names
            check_columns(file, required, present)
            wanted = None if optional is None else [name for name in (*required, *optional) if name in present]
            table = parquet.read(columns=wanted)
        table.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last is of a column's name
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{file}: truncated, damaged or not a parquet file, write it again or by `corerl prepare` ({reason})"
        ) from error
    if table.num_rows == 0:
        raise DataError(f"{file}: has 0 rows")
    return table


def existing(file: str) -> Path:
    """The path of a file; ``~`` is the home folder; one of fsspec is copied to the cache, once for each state of it.

    Raises:
        DataError: no regular file.
    """
    if "://" in file:
        return _copied(file)
    path = Path(file).expanduser()
    if path.is_dir():
        raise DataError(f"{file}: is a folder, name the files in it")
    if not path.exists():
        raise DataError(f"{file}: no such file (looked for {path.absolute()})")
    if not path.is_file():  # a pipe would be waited for, a device may have no end
        raise DataError(f"{file}: is no regular file")
    return path


def _copied(file: str) -> Path:
    import fsspec

    try:
        system, path = fsspec.url_to_fs(file)
        state = json.dumps(system.info(path), default=str, sort_keys=True)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "corerl" / "data"
        copy = cache / f"{hashlib.sha256(f'{file} {state}'.encode()).hexdigest()[:16]}-{Path(path).name}"
        if not copy.exists():
            cache.mkdir(parents=True, exist_ok=True)
            with atomic_path(copy) as temporary:
                system.get_file(path, str(temporary))
    except Exception as error:  # each file system has errors of its own
        raise DataError(f"{file}: cannot be read ({type(error).__name__}: {error})") from error
    return copy


def check_columns(file: str, required: Sequence[str], present: Sequence[str]) -> None:
    """Raise DataError for a column that is missing."""
    for column in required:
        if column not in present:
            hint = did_you_mean(column, present)
            raise DataError(f"{file}: has no column {column!r}{hint}; its columns are {', '.join(present) or 'none'}")
