"""``data.custom_cls``: rows from a class of the user's, in place of the rows of parquet files."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from corerl.contracts.config import DataConfig
from corerl.data.files import Row, check_columns
from corerl.data.report import Location
from corerl.data.schema import REQUIRED_COLUMNS
from corerl.errors import ConfigError, DataError
from corerl.registry.modules import load_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class CustomDataset(Protocol):
    """Called once a split, gives its rows: mappings with the columns of :mod:`corerl.data.schema`.

    Args:
        files: ``data.train_files`` or ``data.val_files``, of whatever format.
        data: the config's section.
        tokenizer: of the model.
        split: ``train`` or ``val``.
    """

    def __call__(
        self,
        files: Sequence[str],
        *,
        data: DataConfig,
        tokenizer: "PreTrainedTokenizerBase",
        split: Literal["train", "val"],
    ) -> Iterable[Mapping[str, Any]]: ...


def custom_rows(
    data: DataConfig, files: Sequence[str], tokenizer: "PreTrainedTokenizerBase", split: Literal["train", "val"]
) -> list[Row] | None:
    """The rows of ``data.custom_cls``; None where there is none.

    Raises:
        ConfigError: it cannot be imported.
        DataError: it gives no rows, or one that is none.
    """
    name = _reference(data.custom_cls)
    if name is None:
        return None
    try:
        dataset: CustomDataset = load_object(name)
    except Exception as error:
        raise ConfigError("data.custom_cls", f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    rows: list[Row] = []
    for number, row in enumerate(dataset(files, data=data, tokenizer=tokenizer, split=split)):
        location = Location(name, number)
        if not isinstance(row, Mapping):
            raise DataError(
                f"{location}: must be a mapping with the columns of a prompt file, not {type(row).__name__}"
            )
        check_columns(str(location), REQUIRED_COLUMNS, list(row))
        rows.append((location, row))
    if not rows:
        raise DataError(f"{name}: has 0 rows")
    return rows


def _reference(value: Any) -> str | None:
    """``path:Class``, which may be written as {path, name}."""
    if isinstance(value, Mapping) and set(value) <= {"path", "name"}:
        if value.get("path") is None:
            return None
        value = f"{value['path']}:{value.get('name')}"
    if value is None or (isinstance(value, str) and ":" in value):
        return value
    raise ConfigError("data.custom_cls", f"must be ./file.py:Class or package.module:Class, not {value!r}")
