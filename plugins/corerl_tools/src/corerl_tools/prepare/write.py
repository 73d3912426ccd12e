"""Write prepared rows to parquet files, all or none."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from corerl.errors import DataError, RequestError
from corerl_tools.prepare.contract import ChatRow
from corerl_tools.prepare.rows import Prepared, PreparedSplit


def table(split: PreparedSplit) -> pa.Table:
    """The rows of one split as an Arrow table; structs have the same fields in every row.

    Raises:
        DataError: a column holds values of different types.
    """
    try:
        return pa.Table.from_pylist([_columns(prepared, split.name) for prepared in split.rows])
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"the rows of {split.name} do not fit one set of column types: {reason}") from error


def write_tables(folder: Path, tables: Mapping[str, pa.Table]) -> None:
    """Write ``<folder>/<file name>`` for each table, first under temporary names.

    Raises:
        RequestError: the folder cannot be made or written; existing files are unchanged.
    """
    created = not folder.exists()
    temporary = {name: folder / f".{name}.{os.getpid()}.tmp" for name in tables}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, path in temporary.items():
            pq.write_table(tables[name], path)
        for name, path in temporary.items():
            path.replace(folder / name)
    except OSError as error:
        raise RequestError(f"{folder}: cannot be written ({error.strerror or error})") from error
    finally:
        for path in temporary.values():
            with contextlib.suppress(OSError):
                path.unlink()
        if created:
            with contextlib.suppress(OSError):  # it holds the files
                folder.rmdir()


def _columns(prepared: Prepared, split: str) -> dict[str, Any]:
    row = prepared.row
    if isinstance(row, ChatRow):
        return {"messages": row.messages}
    return {
        "data_source": row.data_source,
        "prompt": row.prompt,
        "ability": row.ability,
        "reward_model": {"style": "rule", "ground_truth": row.ground_truth},
        "extra_info": {"split": split, "index": prepared.index, **row.extra_info},
        **({"images": [{"bytes": image, "path": None} for image in row.images]} if row.images else {}),
    }
