"""A parquet file that is written in parts, so that an interruption loses at most one part.

The folder ``FILE.parts`` holds the parts, each named by its range of items, and ``request.json``, the values that
determine the content. Complete parts are joined to the file, whose metadata hold the request.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from corerl.errors import ConfigError
from corerl.files import atomic_path, reading, reading_file, remove

_METADATA_KEY = "corerl.request"
_PART = re.compile(r"part-(\d+)-(\d+)\.parquet")


class PartedFile:
    """One output file.

    Args:
        path: of the file.
        request: plain values; parts and files of another request are not reused.
        total: number of items in the complete file.
        overwrite: replace an existing file, and drop parts of another request.
    """

    def __init__(self, path: Path, request: Mapping[str, Any], total: int, *, overwrite: bool = False) -> None:
        self.path, self._request, self._total, self._overwrite = path, request, total, overwrite
        self._folder = path.with_name(f"{path.name}.parts")
        self._note = self._folder / "request.json"

    def is_complete(self) -> bool:
        """Whether the file is complete.

        Raises:
            ConfigError: the file exists and belongs to another request.
        """
        if not self.path.exists() or self._overwrite:
            return False
        if difference := self._difference(_request_of(self.path)):
            raise ConfigError("--out", f"{self.path} exists already, {difference}; --overwrite replaces it")
        remove(self._folder)
        return True

    def missing(self) -> list[range]:
        """The ranges of items without a part, in order.

        Raises:
            ConfigError: there are parts of another request.
        """
        self._check_folder()
        if not self._note.exists():
            with atomic_path(self._note) as temporary:
                temporary.write_text(json.dumps(self._request, indent=2) + "\n", encoding="utf-8")
        held = [items for items, _ in self._parts()]
        starts, stops = [0, *(items.stop for items in held)], [*(items.start for items in held), self._total]
        return [range(start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop]

    def write(self, items: range, table: Any) -> None:
        """Write one part, a pyarrow table; all parts have the same columns."""
        with atomic_path(self._folder / f"part-{items.start:08d}-{items.stop:08d}.parquet") as temporary:
            pq.write_table(table, temporary)

    def join(self) -> None:
        """Join the parts to one file, with one part in memory at a time, and remove them."""
        parts = [path for _, path in self._parts()]
        with reading_file(parts[0]):
            schema = pq.read_schema(parts[0])
        schema = schema.with_metadata({**(schema.metadata or {}), _METADATA_KEY: json.dumps(self._request)})
        with atomic_path(self.path) as temporary, pq.ParquetWriter(temporary, schema) as writer:
            for path in parts:
                with reading_file(path):
                    table = pq.read_table(path).cast(schema)
                writer.write_table(table)
        remove(self._folder)

    def _check_folder(self) -> None:
        with reading(self._note):
            begun = json.loads(self._note.read_text(encoding="utf-8")) if self._note.exists() else None
        if begun is None and not self._parts():
            return
        difference = self._difference(begun)
        if difference and not self._overwrite:
            raise ConfigError(
                "--out", f"{self._folder} holds parts of a run that was ended, {difference}; --overwrite drops them"
            )
        if difference:
            remove(self._folder)

    def _parts(self) -> list[tuple[range, Path]]:
        """Complete parts in the order of their items; a part that overlaps an earlier one is skipped."""
        found: list[tuple[range, Path]] = []
        for path in sorted(self._folder.iterdir()) if self._folder.exists() else ():
            matched = _PART.fullmatch(path.name)
            if matched and int(matched[1]) >= (found[-1][0].stop if found else 0):
                found.append((range(int(matched[1]), int(matched[2])), path))
        return found

    def _difference(self, other: Any) -> str:
        """The difference between another request and this one; '' if they are equal."""
        if not isinstance(other, Mapping):
            return "and was not written by this command"
        for name, wanted in self._request.items():
            if other.get(name) != wanted:
                return f"made with another {name} ({other.get(name)!r:.60}, and now {wanted!r:.60})"
        return ""


def _request_of(file: Path) -> Any:
    """The request stored in a file; None if the file has none."""
    try:
        text = (pq.read_schema(file).metadata or {}).get(_METADATA_KEY.encode())
    except (OSError, ValueError):
        return None
    return None if text is None else json.loads(text)
