"""``corerl prepare``: parquet files for training, from a published data set or from a generator.

:mod:`~corerl_tools.prepare.sources` reads files, folders and the hub; :mod:`~corerl_tools.prepare.rows` converts,
counts dropped records and removes duplicates; :mod:`~corerl_tools.prepare.write` writes all files or none.
"""

from pathlib import Path
from typing import NamedTuple

from corerl.errors import RequestError
from corerl_tools.prepare.contract import DatasetGenerator, RecordPreparer
from corerl_tools.prepare.rows import PreparedSplit, convert, generated, remove_duplicates
from corerl_tools.prepare.sources import Source, read_hub, read_source
from corerl_tools.prepare.write import table, write_tables

__all__ = ["PreparedSet", "PreparedSplit", "prepare_dataset"]


class PreparedSet(NamedTuple):
    """The written splits with their counts, and the files of the source folder that were not read."""

    splits: list[PreparedSplit]
    left_out: list[str]


def prepare_dataset(
    preparer: RecordPreparer | DatasetGenerator, source: str | None, out: Path, split: str | None = None
) -> PreparedSet:
    """Write ``<out>/<split>.parquet`` for every split, all or none.

    Args:
        preparer: converts records to rows, or generates rows.
        source: a JSONL or parquet file, a folder of them, or a hub name; None: the set's own hub name.
        out: an existing folder or a new one.
        split: the split of a single file; None: from the file's name.

    Raises:
        DataError: a file, a line or a row is wrong, or no row of a split can be used; nothing was written.
        RequestError: the source cannot be reached, or ``out`` cannot be written.
    """
    left_out: list[str] = []
    if isinstance(preparer, DatasetGenerator):
        if source is not None or split is not None:
            raise RequestError("this data set is generated: it has neither a source nor --split")
        splits = [generated(name, rows) for name, rows in preparer.generate().items()]
    else:
        records, left_out = _read(preparer, source, split)
        splits = [convert(preparer, name, rows) for name, rows in records.items()]
    remove_duplicates(splits)
    write_tables(out, {f"{each.name}.parquet": table(each) for each in splits})
    return PreparedSet(splits, left_out)


def _read(preparer: RecordPreparer, source: str | None, split: str | None) -> Source:
    if source is not None and (found := read_source(source, split)) is not None:
        return found
    if split is not None:
        raise RequestError("--split is for a single file; a data set on the hub has named splits")
    return read_hub(source or preparer.hub)
