"""A parquet file that is written in parts, so that a kill at any moment loses at most one of them.

Parts stand in the folder ``FILE.parts``, each under the range of items that it holds, beside ``request.json``: what the
content depends on. Once all are there they become the file, which carries the request in its metadata.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from corerl.errors import ConfigError
from corerl.files import atomic_path, remove

_METADATA_KEY = "corerl.request"
_PART = re.compile(r"part-(\d+)-(\d+)\.parquet")


class PartedFile:
    """One output file.

    Args:
        path: of the file.
        request: plain values; parts and files of another request are not mixed in.
        total: items that the file is to hold.
        overwrite: a file is replaced, and parts of another request are dropped.
    """

    def __init__(self, path: Path, request: Mapping[str, Any], total: int, *, overwrite: bool = False) -> None:
        self.path, self._request, self._total, self._overwrite = path, request, total, overwrite
        self._folder = path.with_name(f"{path.name}.parts")
        self._note = self._folder / "request.json"

    def is_complete(self) -> bool:
        """Whether nothing is left to do.

        Raises:
            ConfigError: the file is there, and is another one.
        """
        if not self.path.exists() or self._overwrite:
            return False
        if difference := self._difference(_request_of(self.path)):
            raise ConfigError("--out", f"{self.path} is there already, {difference}; --overwrite replaces it")
        remove(self._folder)
        return True

    def missing(self) -> list[range]:
        """The items that no part holds, in order.

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
        """Write one part, a pyarrow table; all have the same columns."""
        with atomic_path(self._folder / f"part-{items.start:08d}-{items.stop:08d}.parquet") as temporary:
            pq.write_table(table, temporary)

    def join(self) -> None:
        """Make the parts one file, one of them in memory at a time, and remove them."""
        parts = [path for _, path in self._parts()]
        schema = pq.read_schema(parts[0])
        schema = schema.with_metadata({**(schema.metadata or {}), _METADATA_KEY: json.dumps(self._request)})
        with atomic_path(self.path) as temporary, pq.ParquetWriter(temporary, schema) as writer:
            for path in parts:
                writer.write_table(pq.read_table(path).cast(schema))
        remove(self._folder)

    def _check_folder(self) -> None:
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
        """Complete parts in the order of their items; one that overlaps an earlier one is left out."""
        found: list[tuple[range, Path]] = []
        for path in sorted(self._folder.iterdir()) if self._folder.exists() else ():
            matched = _PART.fullmatch(path.name)
            if matched and int(matched[1]) >= (found[-1][0].stop if found else 0):
                found.append((range(int(matched[1]), int(matched[2])), path))
        return found

    def _difference(self, other: Any) -> str:
        """In what another request differs from this one; '' when it does not."""
        if not isinstance(other, Mapping):
            return "and was not written by this command"
        for name, wanted in self._request.items():
            if other.get(name) != wanted:
                return f"made with another {name} ({other.get(name)!r:.60}, and now {wanted!r:.60})"
        return ""


def _request_of(file: Path) -> Any:
    """The request that a file was made for; None for any other file."""
    try:
        text = (pq.read_schema(file).metadata or {}).get(_METADATA_KEY.encode())
    except (OSError, ValueError):
        return None
    return None if text is None else json.loads(text)
