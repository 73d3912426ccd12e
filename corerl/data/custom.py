"""``data.custom_cls``: rows from a class of the user's, in place of the rows of parquet files.

The class is called once for each split, as ``MyData(files, data=…, tokenizer=…, split=…)``, and gives mappings with the
columns of :mod:`corerl.data.schema`. ``files`` are ``data.train_files`` or ``data.val_files`` of any format; ``data``
is the config's section; ``tokenizer`` is the model's; ``split`` is ``train`` or ``val``.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from corerl.contracts.config import DataConfig
from corerl.data.files import Row, check_columns
from corerl.data.report import Location
from corerl.data.schema import REQUIRED_COLUMNS
from corerl.errors import ConfigError, DataError
from corerl.registry.modules import foreign_exits, load_object, one_line, require_trust


def custom_rows(
    data: DataConfig, files: Sequence[str], tokenizer: Any, split: Literal["train", "val"]
) -> list[Row] | None:
    """The rows of ``data.custom_cls``; None without one.

    Raises:
        ConfigError, UntrustedError: it cannot be imported.
        DataError: it gives no rows, or something else than rows.
    """
    name = _reference(data.custom_cls)
    if name is None:
        return None
    require_trust(name)
    try:
        dataset = load_object(name)
    except (Exception, SystemExit) as error:
        raise ConfigError("data.custom_cls", f"{name} cannot be imported: {one_line(error)}") from error
    rows: list[Row] = []
    with foreign_exits():
        for number, row in enumerate(dataset(files, data=data, tokenizer=tokenizer, split=split)):
            location = Location(name, number)
            if not isinstance(row, Mapping):
                kind = type(row).__name__
                raise DataError(f"{location}: must be a mapping with the columns of a prompt file, not {kind}")
            check_columns(str(location), REQUIRED_COLUMNS, list(row))
            rows.append((location, row))
    if not rows:
        raise DataError(f"{name}: has 0 rows")
    return rows


def _reference(value: Any) -> str | None:
    """``path:Class``, which may be written as {path, name}."""
    if isinstance(value, Mapping) and set(value) <= {"path", "name"}:
        value = None if value.get("path") is None else f"{value['path']}:{value.get('name')}"
    if value is None or (isinstance(value, str) and ":" in value):
        return value
    raise ConfigError("data.custom_cls", f"must be ./file.py:Class or package.module:Class, not {value!r}")
