"""Counts of rows that were read: kept, or skipped with a reason."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from corerl.errors import DataError

EXAMPLES = 3
"""named places, at most"""

_SPELLED = "spell control tokens ({tokens}) in their texts, where they stay text (model.allowed_special)"


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
        spelled: control tokens that texts of kept rows spell.
        unread: columns that are not read, though they could change the prompts.
    """

    rows_read: int = 0
    skipped: dict[str, list[Location]] = field(default_factory=dict)
    noted: dict[str, dict[Location, None]] = field(default_factory=dict)
    truncated: int = 0
    spelled: Counter[str] = field(default_factory=Counter)
    unread: list[str] = field(default_factory=list)

    @property
    def kept(self) -> int:
        return self.rows_read - sum(map(len, self.skipped.values()))

    def skip(self, reason: str, location: Location) -> None:
        """Count one row as left out."""
        self.skipped.setdefault(reason, []).append(location)

    def note(self, what: str, location: Location) -> None:
        """Count a kept row of which something is to be known, once."""
        self.noted.setdefault(what, {})[location] = None

    def note_spelled(self, tokens: Mapping[str, int], location: Location) -> None:
        """Count a row whose texts spell control tokens."""
        if tokens:
            self.spelled.update(tokens)
            self.note(_SPELLED, location)

    def require_kept(self) -> None:
        """Raise DataError when every row was skipped."""
        if self.kept == 0:
            raise DataError(f"none of {self.rows_read} rows can be used: {'; '.join(self._reasons())}")

    def _reasons(self) -> list[str]:
        return [f"{len(places)} skipped, {reason} ({name_places(places)})" for reason, places in self.skipped.items()]

    def notes(self) -> list[str]:
        """A line for each thing to know about kept rows."""
        tokens = ", ".join(token for token, _ in self.spelled.most_common(EXAMPLES))
        lines = [
            f"{len(places)} {what.replace('{tokens}', tokens)} ({name_places([*places])})"
            for what, places in self.noted.items()
        ]
        if self.unread:
            lines.append(f"not read, though they could change the prompts: columns {', '.join(self.unread)}")
        return lines

    def __str__(self) -> str:
        cut = [f"{self.truncated} cut to the length limit"] if self.truncated else []
        return "\n  ".join([f"{self.rows_read} rows read, {self.kept} kept", *self._reasons(), *cut, *self.notes()])


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
