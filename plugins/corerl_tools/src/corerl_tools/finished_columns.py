"""Columns of tokens in the JSON of finished groups."""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from corerl.contracts.token_columns import TokenValues


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
    return {
        name: TokenValues.from_bytes(dtype, shape, _bytes(values), _bytes(counts))
        for name, (dtype, shape, values, counts) in columns.items()
    }


def _text(array: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
