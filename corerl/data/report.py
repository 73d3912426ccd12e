"""Counts of rows that were read: kept, or skipped with a reason."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from corerl.errors import DataError

EXAMPLES = 3
"""named places, at most"""

SPELLED = "spell the control token {}, which stays text (model.allowed_special)"
"""note of a row"""


class Location(NamedTuple):
    """The place of a row: rows of a parquet file count from 0, lines of a JSONL file from 1."""

    file: str
    number: int
    unit: Literal["row", "line"] = "row"

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}"


@dataclass
class LoadReport:
    """The count of one reading; ``str()`` gives the lines to print.

    Attributes:
        rows_read: rows looked at, in all files.
        skipped: reason -> places of the rows left out for it.
        noted: what is to be known about kept rows -> their places.
        truncated: rows kept, but cut to the length limit.
        unread: columns that are not read, though they could change the prompts.
        digest: of the content of the rows given to :meth:`add`, in their order.
    """

    rows_read: int = 0
    skipped: dict[str, list[Location]] = field(default_factory=dict)
    noted: dict[str, dict[Location, None]] = field(default_factory=dict)
    truncated: int = 0
    unread: list[str] = field(default_factory=list)
    digest: str = ""

    @property
    def kept(self) -> int:
        return self.rows_read - sum(map(len, self.skipped.values()))

    def add(self, content: Any) -> None:
        """Add the content of a row to the digest."""
        try:
            text = json.dumps(content, default=_plain, sort_keys=True)
        except (TypeError, ValueError):  # keys that are no texts, a value within itself
            text = _plain(content)
        self.digest = hashlib.sha256(f"{self.digest}{text}".encode(errors="surrogatepass")).hexdigest()

    def skip(self, reason: str, location: Location) -> None:
        """Count one row as left out."""
        self.skipped.setdefault(reason, []).append(location)

    def note(self, what: str, location: Location) -> None:
        """Count a kept row of which something is to be known, once."""
        self.noted.setdefault(what, {})[location] = None

    def require_kept(self) -> None:
        """Raise DataError when every row was skipped."""
        if self.kept == 0:
            raise DataError(f"none of {self.rows_read} rows can be used: {'; '.join(self._reasons())}")

    def _reasons(self) -> list[str]:
        return [f"{len(places)} skipped, {reason} ({name_places(places)})" for reason, places in self.skipped.items()]

    def notes(self) -> list[str]:
        """A line for each thing to know about kept rows."""
        lines = [f"{len(places)} {what} ({name_places([*places])})" for what, places in self.noted.items()]
        columns = ", ".join(self.unread)
        return [*lines, *([f"not read, though they could change the prompts: columns {columns}"] if columns else [])]

    def __str__(self) -> str:
        cut = [f"{self.truncated} cut to the length limit"] if self.truncated else []
        return "\n  ".join([f"{self.rows_read} rows read, {self.kept} kept", *self._reasons(), *cut, *self.notes()])


def _plain(value: Any) -> str:
    """A text of a value that JSON lacks, such as an image or a date; without the address of an object."""
    return hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else re.sub(" at 0x[0-9a-f]+", "", repr(value))


def name_places(places: Sequence[Location]) -> str:
    """The first three places, each file named once, and the number of others.

    >>> name_places([Location("a.parquet", number) for number in (3, 8, 9, 11)])
    'a.parquet, row 3; row 8; row 9; and 1 more'
    """
    words, file = [], ""
    for place in places[:EXAMPLES]:
        words.append(f"{place.unit} {place.number}" if place.file == file else str(place))
        file = place.file
    more = len(places) - EXAMPLES
    return "; ".join([*words, *([f"and {more} more"] if more > 0 else [])])
