"""Records from a file, a folder or the hub, by split."""

import importlib
import re
from pathlib import Path
from typing import NamedTuple

from corerl.data import read_parquet
from corerl.data.files import Row
from corerl.data.report import Location
from corerl.errors import DataError, RequestError
from corerl_check.hub import look_for_hub
from corerl_check.jsonl import read_jsonl

SPLITS = ("train", "test")
_SUFFIXES = (".jsonl", ".json", ".parquet")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")


class Source(NamedTuple):
    """The records of each split, and the files of the folder that belong to no split."""

    splits: dict[str, list[Row]]
    left_out: list[str]


def read_source(source: str, split: str | None) -> Source | None:
    """The records of a file, or of a folder's train and test files; None if ``source`` can only be a hub name.

    Args:
        source: a file ending in .jsonl, .json (one object a line) or .parquet, or a folder that holds such files with
            ``train`` or ``test`` as a word of their names.
        split: the split of a single file; None: from the file's name.

    Raises:
        DataError: there is no such file, its split is unknown, or its content is wrong.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        if split is not None:
            raise DataError(f"{source}: --split is for a single file, and this is a folder")
        return _read_folder(path)
    if path.is_file():
        split = split or _split_of(path)
        if split is None:
            raise DataError(f"{source}: its name contains neither train nor test: set --split")
        return Source({split: _read_file(path)}, [])
    if _HUB_NAME.fullmatch(source) and path.suffix not in _SUFFIXES and not source.startswith("."):
        return None
    raise DataError(f"{source}: no such file or folder, and no hub name either (owner/name)")


def read_hub(hub: str) -> Source:
    """The train and test records of ``owner/name`` or ``owner/name:configuration``, read by the package datasets.

    Raises:
        RequestError: datasets is not installed, the hub cannot be reached, or the set has neither split.
    """
    name, _, configuration = hub.partition(":")
    otherwise = "or name a local file or folder"
    look_for_hub()
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise RequestError(
            f"{hub}: the hub is read by the package datasets: pip install datasets, {otherwise}"
        ) from error
    try:
        data = datasets.load_dataset(name, configuration or None)
    except Exception as error:  # of many kinds: unreachable, unknown, private, damaged
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise RequestError(f"{hub}: cannot be read from the hub ({reason}); try again, {otherwise}") from error
    found = {
        split: [(Location(f"{name} {split}", number), record) for number, record in enumerate(data[split])]
        for split in SPLITS
        if split in data
    }
    if not found:
        raise RequestError(
            f"{hub}: has neither a train nor a test split, only {', '.join(map(str, data)) or 'nothing'}"
        )
    return Source(found, [])


def _read_folder(folder: Path) -> Source:
    files = sorted(file for file in folder.iterdir() if file.suffix in _SUFFIXES and not file.name.startswith("."))
    splits: dict[str, list[Row]] = {}
    for split in SPLITS:
        for file in files:
            if _split_of(file) == split:
                splits.setdefault(split, []).extend(_read_file(file))
    if not splits:
        names = ", ".join(file.name for file in files) or "none"
        raise DataError(
            f"{folder}: holds no {'/'.join(_SUFFIXES)} file with train or test as a word of its name (found: {names})"
        )
    return Source(splits, [file.name for file in files if _split_of(file) is None])


def _split_of(file: Path) -> str | None:
    """'train' or 'test' if exactly one of them is a word of the file's name."""
    words = re.split(r"[^a-z]+", file.stem.lower())
    found = [split for split in SPLITS if split in words]
    return found[0] if len(found) == 1 else None


def _read_file(file: Path) -> list[Row]:
    if file.suffix == ".parquet":
        return read_parquet(str(file), (), None)
    if file.suffix in _SUFFIXES:
        return read_jsonl(str(file))
    raise DataError(f"{file}: should end in {', '.join(_SUFFIXES)}")
