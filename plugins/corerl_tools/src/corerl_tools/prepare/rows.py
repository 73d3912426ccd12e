"""Conversion of records to rows, with counts and reasons of dropped records."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field

from corerl.data.files import Row
from corerl.data.progress import batches
from corerl.data.report import Location, name_places
from corerl.errors import CoreRLError, DataError
from corerl_tools.prepare.contract import ChatRow, Dropped, PromptRow, RecordPreparer


@dataclass(frozen=True)
class Prepared:
    """A row, the number of its record in the split, and the record's location."""

    row: PromptRow | ChatRow
    index: int
    location: Location


@dataclass
class PreparedSplit:
    """One split between source and file.

    Attributes:
        read: records in the source, or generated rows.
        rows: the remaining rows.
        dropped: reason -> the dropped records.
        noted: remark -> its records.
    """

    name: str
    read: int = 0
    rows: list[Prepared] = field(default_factory=list)
    dropped: dict[str, list[Location]] = field(default_factory=lambda: defaultdict(list))
    noted: dict[str, list[Location]] = field(default_factory=lambda: defaultdict(list))


def convert(preparer: RecordPreparer, name: str, records: Sequence[Row]) -> PreparedSplit:
    """Convert the records of one split, with a progress bar.

    Raises:
        DataError: the preparer cannot use a record; the message names its file and row.
    """
    split = PreparedSplit(name, read=len(records))
    for index, (location, record) in enumerate(_one_by_one(records, f"preparing {name}")):
        try:
            row = preparer(record)
        except CoreRLError as error:
            raise DataError(f"{location}: {error}") from error
        except Exception as error:
            raise DataError(f"{location}: the preparer failed with {type(error).__name__}: {error}") from error
        if isinstance(row, Dropped):
            split.dropped[row.reason].append(location)
            continue
        if row.note:
            split.noted[row.note].append(location)
        split.rows.append(Prepared(row, index, location))
    return split


def generated(name: str, rows: Iterable[PromptRow | ChatRow]) -> PreparedSplit:
    """The rows of one split from a generator."""
    prepared = [Prepared(row, index, Location("made here", index)) for index, row in enumerate(rows)]
    return PreparedSplit(name, read=len(prepared), rows=prepared)


def remove_duplicates(splits: Sequence[PreparedSplit]) -> None:
    """Drop rows with repeated prompts, and rows of train whose prompts are also in test.

    The first of several equal rows is kept. If rows with the same prompt have different ground truths, all of them are
    dropped, because the right one is unknown. Conversations (:class:`ChatRow`) are compared as a whole.

    Raises:
        DataError: a split has no rows left.
    """
    held_out = {_key(each.row) for split in splits if split.name == "test" for each in split.rows}
    for split in splits:
        _drop(split, held_out if split.name == "train" else set())
        if not split.rows:
            reasons = [f"{reason} ({name_places(places)})" for reason, places in split.dropped.items()]
            raise DataError(f"none of the {split.read} rows of {split.name} can be used: {'; '.join(reasons)}")


def _drop(split: PreparedSplit, held_out: Set[str]) -> None:
    truths: dict[str, set[str]] = defaultdict(set)
    for each in split.rows:
        if isinstance(each.row, PromptRow):
            truths[_key(each.row)].add(json.dumps(each.row.ground_truth, sort_keys=True))
    kept: dict[str, Prepared] = {}
    for each in split.rows:
        key = _key(each.row)
        if len(truths[key]) > 1:
            split.dropped["the same prompt with another ground truth"].append(each.location)
        elif key in held_out:
            split.dropped["the prompt is also in test"].append(each.location)
        elif key in kept:
            split.dropped["duplicate"].append(each.location)
        else:
            kept[key] = each
    split.rows = list(kept.values())


def _key(row: PromptRow | ChatRow) -> str:
    if isinstance(row, ChatRow):
        return json.dumps(row.messages)
    images = [hashlib.sha256(image).hexdigest() for image in row.images]
    return json.dumps([row.prompt, images] if images else row.prompt)


def _one_by_one(records: Sequence[Row], description: str) -> Iterator[Row]:
    for batch in batches(records, description):
        yield from batch
