"""Columns of rows that nothing reads, though they could change the prompts."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pyarrow.parquet as pq

from corerl.data.files import Row, existing
from corerl.errors import RequestError

USUAL = frozenset(
    {
        *("system", "system_prompt", "functions", "documents", "chat_template_kwargs"),
        *("image", "images", "video", "videos", "audio", "audios", "file", "files"),
    }
)
"""names under which data sets have parts of prompts"""

_ROWS = 16


def other_columns(files: Sequence[str], rows: Sequence[Row], known: Collection[str]) -> dict[str, Any]:
    """Column of parquet files and rows that is none of the known ones -> the first value that is not empty."""
    values: dict[str, Any] = {}
    for row in [row for _, row in rows[:_ROWS]] + _first_rows(files, known):
        for name, value in row.items():
            if name not in known and name not in values and not _is_empty(value):
                values[name] = value
    return values


def unread_columns(
    values: Mapping[str, Any], tools: Sequence[Any], render: Callable[[Mapping[str, Any]], str]
) -> list[str]:
    """The columns that could change the prompts: by their names, or since the chat template takes them as variables.

    Args:
        values: of :func:`other_columns`.
        tools: of the rendered chat; they are not read by a template that shows none.
        render: renders one chat with further variables; RequestError: the template refuses them.
    """
    plain = render({})

    def changes(name: str, value: Any) -> bool:
        try:
            return render({name: value}) != plain
        except RequestError:
            return False

    unread = [name for name, value in values.items() if name in USUAL or changes(name, value)]
    return unread + ["tools (the chat template shows none)"] * (bool(tools) and not changes("tools", None))


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | Sequence | Mapping) and not value)


def _first_rows(files: Sequence[str], known: Collection[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for file in files:
        if not file.endswith(".parquet"):
            continue
        with pq.ParquetFile(existing(file)) as parquet:
            fields = [field for field in parquet.schema_arrow if field.name not in known]
            names = [field.name for field in fields if field.name in USUAL or "binary" not in str(field.type)]
            for batch in parquet.iter_batches(_ROWS, columns=names):
                found += batch.to_pylist(maps_as_pydicts="lossy")
                break
    return found
