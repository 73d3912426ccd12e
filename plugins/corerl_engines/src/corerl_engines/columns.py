"""Columns of tokens from the engine's process."""

import math
from typing import Any

import numpy as np

from corerl.contracts.token_columns import TokenValues

DTYPES = {"int16": np.int16, "int32": np.int32, "float32": np.float32, "uint8": np.uint8}
MOST_DIMENSIONS = 4


class Columns:
    """Takes the columns of one sample after the other from the bytes of an answer
    (:func:`corerl_engines.remote.frames.pack_columns`)."""

    def __init__(self, payload: bytes) -> None:
        self._payload, self._start = payload, 0

    @property
    def rest(self) -> int:
        """Bytes that were not taken."""
        return len(self._payload) - self._start

    def take(self, facts: Any) -> dict[str, TokenValues]:
        """The columns of the next sample.

        Raises:
            TypeError, ValueError: the facts are invalid, or describe more bytes than there are.
        """
        found = {}
        for name, dtype, shape, tokens in facts:
            if not all(type(size) is int and size >= 0 for size in (*shape, tokens)) or dtype not in DTYPES:
                raise ValueError(f"a column {name!r:.50} of {dtype!r:.20}, {shape!r:.50}, {tokens!r:.20}")
            if not isinstance(name, str) or not 1 <= len(shape) <= MOST_DIMENSIONS:
                raise ValueError(f"a column {name!r:.50} of {len(shape)} dimensions")
            values = self._array(DTYPES[dtype], math.prod(shape)).reshape(shape)
            found[name] = TokenValues(values, self._array(np.int32, tokens))
        return found

    def _array(self, dtype: Any, count: int) -> Any:
        size = count * np.dtype(dtype).itemsize
        if size > self.rest:
            raise ValueError(f"a column of {size} bytes, of which {self.rest} are there")
        array = np.frombuffer(self._payload, dtype, count, self._start)
        self._start += size
        return array
