"""``manifest.json``: size and checksums of every other file of a checkpoint. Damage is found before a file is read.

The checksums are CRC-32 of blocks of 64 MiB. Several threads read the blocks of one file, about as fast as the disk.
"""

import json
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from corerl.files import read_text

NAME = "manifest.json"
BLOCK = 64 * 2**20
LARGEST_BLOCK = 2**40
THREADS = 8


def write(folder: Path) -> None:
    """Write the manifest of a folder; at the return all of its files have reached the disk."""
    files = {str(path.relative_to(folder)): _described(path) for path in _files(folder)}
    manifest = folder / NAME
    manifest.write_text(json.dumps({"block": BLOCK, "files": files}))
    for path in (*_files(folder), manifest):
        _flush(path)


def damage(folder: Path) -> str:
    """The first damage of a checkpoint, in words; '' if every file is as it was written."""
    try:
        manifest = json.loads(read_text(folder / NAME))
        block, files = int(manifest["block"]), {name: dict(written) for name, written in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return f"it has no readable {NAME}"
    if not 0 < block <= LARGEST_BLOCK:
        return f"{NAME} has blocks of {block} bytes"
    for name, written in files.items():
        path = folder / name
        if ".." in Path(name).parts or Path(name).is_absolute():
            return f"{NAME} names {name!r}, which is outside the checkpoint"
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != written.get("size"):
            return f"{name} has {path.stat().st_size} bytes, not {written.get('size')}"
        if _checksums(path, block) != written.get("crc32"):
            return f"{name} differs from the written content"
    return ""


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != NAME)


def _described(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "crc32": _checksums(path, BLOCK)}


def _checksums(path: Path, block: int) -> list[int]:
    offsets = range(0, path.stat().st_size, block)
    if len(offsets) <= 1:
        return [_checksum(path, offset, block) for offset in offsets]
    with ThreadPoolExecutor(min(THREADS, len(offsets))) as threads:
        return list(threads.map(lambda offset: _checksum(path, offset, block), offsets))


def _checksum(path: Path, offset: int, size: int) -> int:
    with path.open("rb") as file:
        file.seek(offset)
        return zlib.crc32(file.read(size))


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
