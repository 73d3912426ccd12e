"""Columns of tokens that are recorded during generation, on the host."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from corerl.contracts.token_columns import TokenValues


class RecordedColumn:
    """The values of a column so far, for R rows that start together."""

    def __init__(self, rows: int) -> None:
        self._parts: list[list[NDArray[Any]]] = [[] for _ in range(rows)]

    def add(self, rows: NDArray[np.int64], values: NDArray[Any], counts: NDArray[np.int64]) -> None:
        """Add the values of one token of each row.

        Args:
            rows: (r,) indices into the R rows.
            values: of all rows end to end.
            counts: (r,) number of values of each row.
        """
        ends = counts.cumsum()
        for row, start, end in zip(rows.tolist(), (ends - counts).tolist(), ends.tolist(), strict=True):
            self._parts[row].append(values[start:end])

    def take(self, row: int, tokens: int) -> TokenValues:
        """The values of the first ``tokens`` tokens of a row, which are then forgotten."""
        parts, self._parts[row] = self._parts[row][:tokens], []
        counts = np.fromiter(map(len, parts), np.int32, count=len(parts))
        return TokenValues(np.concatenate(parts) if parts else np.zeros(0, np.int32), counts)
