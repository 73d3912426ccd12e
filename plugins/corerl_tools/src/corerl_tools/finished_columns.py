"""Columns of tokens in the JSON of finished groups."""

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from corerl.contracts.token_columns import TokenValues

DTYPES = ("int16", "int32", "float32", "uint8")
MOST_DIMENSIONS = 4


def columns_to_json(columns: Mapping[str, TokenValues]) -> dict[str, Any]:
    """Name -> dtype and shape of the values, their bytes in base64, and the counts in base64."""
    return {
        name: [str(column.values.dtype), list(column.values.shape), _text(column.values), _text(column.counts)]
        for name, column in columns.items()
    }


def columns_from_json(columns: Any) -> dict[str, TokenValues]:
    """
    Raises:
        TypeError, ValueError: these are no columns that :func:`columns_to_json` makes.
    """
    if type(columns) is not dict:
        raise TypeError(f"columns of tokens are {columns!r:.100}")
    found = {}
    for name, (dtype, shape, values, counts) in columns.items():
        if dtype not in DTYPES or not 1 <= len(shape) <= MOST_DIMENSIONS:
            raise ValueError(f"a column of tokens of {dtype!r:.20}, {shape!r:.50}")
        found[name] = TokenValues(_array(values, dtype, shape), _array(counts, "int32"))
    return found


def _text(array: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _array(text: str, dtype: str, shape: Sequence[int] = (-1,)) -> Any:
    array = np.frombuffer(base64.b64decode(text, validate=True), dtype)
    if shape != (-1,) and (any(type(size) is not int or size < 0 for size in shape) or math.prod(shape) != array.size):
        raise ValueError(f"a column of {array.size} values has the shape {shape!r:.50}")
    return array.reshape(shape)
