"""Rows from JSONL files, each with its location."""

import json
from collections.abc import Iterator

from corerl.data.files import Row, existing
from corerl.data.report import Location
from corerl.errors import DataError


def read_jsonl(file: str) -> list[Row]:
    """One JSON object a line, without empty lines.

    Raises:
        DataError: the file is missing or empty, or a line is not a JSON object.
    """
    try:
        lines = existing(file).read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: is not UTF-8 text ({error})") from error
    rows = list(_json_rows(file, lines))
    if not rows:
        raise DataError(f"{file}: has 0 rows")
    return rows


def _json_rows(file: str, lines: list[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        location = Location(file, number, "line")
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # also of a number of thousands of digits
            raise DataError(f"{location}: is not JSON, or was cut off ({error})") from error
        if not isinstance(row, dict):
            raise DataError(f"{location}: must be a JSON object, not {type(row).__name__}")
        yield location, row
