"""The contents and the defects of prompt files; a defect does not stop the reading."""

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data.files import Row, located_rows, read_parquet_file
from corerl.data.prompts import tokenize
from corerl.data.report import EXAMPLES, Location, name_places
from corerl.data.schema import REQUIRED_COLUMNS, PromptRecord, is_empty, read_record
from corerl.errors import DataError
from corerl_check.jsonl import read_jsonl

_SHOWN = 50


@dataclass
class Defects:
    """Kind of defect -> places of its rows; ``notes`` describe the first ones."""

    found: dict[str, list[Location]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, location: Location, note: str = "") -> None:
        """Count one."""
        places = self.found.setdefault(kind, [])
        places.append(location)
        if note and len(places) <= EXAMPLES:
            self.notes.setdefault(kind, []).append(note)

    def note(self, kind: str, *notes: str) -> None:
        """Add a defect that belongs to no single row."""
        self.found.setdefault(kind, [])
        self.notes.setdefault(kind, []).extend(notes)

    def __len__(self) -> int:
        """The number of kinds of defects."""
        return len(self.found)

    def lines(self) -> list[str]:
        """Lines for the terminal."""
        lines = []
        for kind, places in self.found.items():
            lines.append(f"{len(places)} {kind}: {name_places(places)}" if places else kind)
            lines += [f"  {note}" for note in self.notes.get(kind, ())]
        return lines


@dataclass(frozen=True)
class File:
    """One file: its columns with their types, and its number of rows."""

    name: str
    columns: Mapping[str, str]
    rows: int


@dataclass(frozen=True)
class Inspection:
    """The result of an inspection.

    Attributes:
        records: the readable rows.
        lengths: tokens of each row's templated prompt; empty without a tokenizer.
        rendered: the first templated prompts; without a tokenizer, the first chats as JSON.
    """

    files: tuple[File, ...]
    records: tuple[PromptRecord, ...]
    lengths: tuple[int, ...]
    rendered: tuple[str, ...]
    defects: Defects

    @property
    def sources(self) -> Counter[str]:
        """The number of rows of each data source."""
        return Counter(record.data_source for record in self.records)


def inspect_files(
    names: Sequence[str],
    tokenizer: ChatTokenizer | None = None,
    *,
    max_length: int | None = None,
    rows_shown: int = 1,
    template_kwargs: Mapping[str, Any] | None = None,
) -> Inspection:
    """Read prompt files, parquet or JSONL.

    Args:
        tokenizer: measures and renders prompts.
        max_length: a prompt with more tokens is a defect.
        rows_shown: number of rendered rows.

    Raises:
        DataError: a file is missing, damaged or empty.
    """
    defects = Defects()
    files, records = [], []
    for name in names:
        file, rows = _read(name)
        files.append(file)
        missing = [column for column in REQUIRED_COLUMNS if column not in file.columns]
        for column in missing:
            defects.note(f"{name}: no column '{column}'")
        records += [] if missing else _records(rows, defects)
    _find_duplicates(records, defects)
    if tokenizer is None:
        shown = [
            json.dumps(record.messages, ensure_ascii=False, indent=2, default=str) for record in records[:rows_shown]
        ]
        return Inspection(tuple(files), tuple(records), (), tuple(shown), defects)
    texts, lengths = _tokenized(records, tokenizer, template_kwargs or {}, defects)
    for record, length in zip(records, lengths, strict=False):
        if max_length is not None and length > max_length:
            defects.add(f"prompts longer than {max_length} tokens", record.location, f"{length} tokens")
    return Inspection(tuple(files), tuple(records), tuple(lengths), tuple(texts[:rows_shown]), defects)


def histogram(lengths: Sequence[int], bins: int = 10, width: int = 40) -> list[tuple[str, str, str]]:
    """Rows (range, count, bar); the longest bar has ``width`` characters.

    >>> histogram([1, 2, 2, 10], bins=3, width=4)
    [('1–4', '3', '████'), ('5–8', '0', ''), ('9–12', '1', '█')]
    """
    low, step = min(lengths), max(1, -(-(max(lengths) - min(lengths) + 1) // bins))
    counts = Counter((length - low) // step for length in lengths)
    most = max(counts.values())
    rows = []
    for number in range(max(counts) + 1):
        start, count = low + number * step, counts[number]
        bar = "█" * max(round(width * count / most), bool(count))
        rows.append((f"{start}–{start + step - 1}" if step > 1 else str(start), str(count), bar))
    return rows


def length_line(lengths: Sequence[int], max_length: int | None = None) -> str:
    """Smallest, median, mean, 99th percentile and largest length; and the share above a limit."""
    ordered = sorted(lengths)
    high = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    text = (
        f"from {ordered[0]} to {ordered[-1]}, median {statistics.median(ordered):g}, "
        f"mean {statistics.fmean(ordered):.1f}, 99% up to {high}"
    )
    if max_length is not None:
        above = sum(length > max_length for length in ordered)
        text += f"; {above} ({above / len(ordered):.2%}) above {max_length}"
    return text


def _read(name: str) -> tuple[File, list[Row]]:
    if Path(name).suffix in (".jsonl", ".json"):
        rows = read_jsonl(name)
        return File(name, _json_types(row for _, row in rows), len(rows)), rows
    table = read_parquet_file(name)
    columns = {column.name: str(column.type) for column in table.schema}
    return File(name, columns, table.num_rows), located_rows(name, table)


def _json_types(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    types: dict[str, dict[str, None]] = {}
    for row in rows:
        for key, value in row.items():
            types.setdefault(key, {})["null" if value is None else type(value).__name__] = None
    return {key: " or ".join(names) for key, names in types.items()}


def _records(rows: Sequence[Row], defects: Defects) -> list[PromptRecord]:
    found = []
    for location, row in rows:
        try:
            record = read_record(location, {**dict.fromkeys(REQUIRED_COLUMNS), **row})
        except DataError as error:
            defects.add("rows of a wrong type", location, str(error))
            continue
        if is_empty(record.ground_truth):
            defects.add("empty ground truths, which training leaves out", location)
        found.append(record)
    return found


def _find_duplicates(records: Sequence[PromptRecord], defects: Defects) -> None:
    by_prompt: dict[str, list[PromptRecord]] = {}
    for record in records:
        by_prompt.setdefault(_plain([record.messages, record.media]), []).append(record)
    for same in by_prompt.values():
        if len(same) == 1:
            continue
        answers = {_plain(record.ground_truth): record for record in same}
        if len(answers) == 1:
            defects.add("prompts in several rows", same[0].location)
        else:
            first, second = list(answers.values())[:2]
            places = name_places([first.location, second.location])
            truths = f"{_shown(first.ground_truth)} and {_shown(second.ground_truth)}"
            note = f"{truths} in {places}: {_shown(first.messages[-1]['content'])}"
            defects.add("prompts with different ground truths", first.location, note)


def _tokenized(
    records: Sequence[PromptRecord], tokenizer: ChatTokenizer, template_kwargs: Mapping[str, Any], defects: Defects
) -> tuple[list[str], list[int]]:
    """Each prompt after the chat template, and its tokens; '' and 0 if the template fails."""
    texts, lengths = [], []
    for record in records:
        try:
            [row] = tokenize([record], tokenizer, template_kwargs)
        except DataError as error:
            defects.add("prompts that the chat template refuses", record.location, str(error))
            texts.append("")
            lengths.append(0)
            continue
        if spelled := tokenizer.spelled(row.text):
            defects.add("prompts that spell control tokens, which stay text", record.location, ", ".join(spelled))
        texts.append(tokenizer.unmarked(row.text))
        lengths.append(len(row.token_ids))
    return texts, lengths


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _shown(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
