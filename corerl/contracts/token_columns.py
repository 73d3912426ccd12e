"""Columns of tokens: values that an engine records at tokens, a number of them for each, and training replays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor

DTYPES = ("float32", "int16", "int32", "uint8")
MOST_DIMENSIONS = 4


@dataclass(frozen=True, eq=False)
class TokenValues:
    """Values of consecutive tokens of one sequence.

    Attributes:
        values: (N, …) of all tokens end to end.
        counts: (tokens,) int32, number of values of each token; their sum is N.
    """

    values: NDArray[Any]
    counts: NDArray[np.int32]

    def __post_init__(self) -> None:
        if self.counts.ndim != 1 or len(self.values) != int(self.counts.sum()) or (self.counts < 0).any():
            raise ValueError(f"{len(self.values)} values for tokens with {int(self.counts.sum())}")

    @classmethod
    def from_bytes(cls, dtype: str, shape: Sequence[int], values: bytes, counts: bytes) -> "TokenValues":
        """The values that another process, or a file, has as bytes.

        Raises:
            TypeError, ValueError: dtype, shape or lengths are invalid, or do not agree.
        """
        if dtype not in DTYPES or len(shape) > MOST_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"values of tokens of {dtype!r:.20}, {shape!r:.50}")
        return cls(np.frombuffer(values, dtype).reshape(shape), np.frombuffer(counts, np.int32))

    def __len__(self) -> int:
        return len(self.counts)

    def equals(self, other: "TokenValues") -> bool:
        """Whether the tokens have the same values."""
        return np.array_equal(self.counts, other.counts) and np.array_equal(self.values, other.values)

    def cut(self, start: int, end: int) -> "TokenValues":
        """The values of the tokens from ``start`` to ``end``."""
        first, last = int(self.counts[:start].sum()), int(self.counts[:end].sum())
        return TokenValues(self.values[first:last], self.counts[start:end])

    def last(self, tokens: int) -> "TokenValues":
        """The values of the last tokens; tokens before the first one have none."""
        missing = max(0, tokens - len(self))
        own = self.cut(len(self) - tokens + missing, len(self))
        return TokenValues(own.values, np.concatenate([np.zeros(missing, np.int32), own.counts])) if missing else own

    def joined(self, further: "TokenValues") -> "TokenValues":
        """These values and those of further tokens, end to end."""
        parts = [part.values for part in (self, further) if len(part.values)] or [self.values]
        return TokenValues(np.concatenate(parts), np.concatenate([self.counts, further.counts]))

    def widened(self, tokens: int) -> "TokenValues":
        """The values with those of ``tokens`` further tokens, which have none."""
        return TokenValues(self.values, np.concatenate([self.counts, np.zeros(tokens, np.int32)]))

    def then(self, further: "TokenValues", tokens: int) -> "TokenValues":
        """These values and those of ``tokens`` further tokens, the last ones of ``further``.

        Last tokens without values here, such as a token that no model has read yet, get those of ``further``.
        """
        known = np.flatnonzero(self.counts)
        end = int(known[-1]) + 1 if len(known) else 0
        rest = further.last(tokens + len(self) - end)
        parts = [part.values for part in (self, rest) if len(part.values)] or [self.values]
        return TokenValues(np.concatenate(parts), np.concatenate([self.counts[:end], rest.counts]))


def cut_columns(columns: Mapping[str, TokenValues], removed: int) -> dict[str, TokenValues]:
    """The columns without their last ``removed`` tokens."""
    return {name: column.cut(0, max(0, len(column) - removed)) for name, column in columns.items()}


@dataclass(frozen=True, eq=False)
class TokenColumn:
    """Values of the tokens of B rows.

    Attributes:
        values: (N, …), row after row, token after token.
        counts: (B, W) int32, number of values of the token in each column of ``input_ids``, prompts included; tokens
            from column W on have none.
    """

    values: "Tensor"
    counts: "Tensor"

    @classmethod
    def collate(cls, rows: Sequence[TokenValues | None], lengths: Sequence[int]) -> "TokenColumn":
        """The values of each row's last tokens; rows of ``lengths`` tokens."""
        import torch

        counts = np.zeros((len(rows), max(lengths, default=0)), np.int32)
        for row, (own, length) in enumerate(zip(rows, lengths, strict=True)):
            if own is not None:
                counts[row, :length] = own.last(length).counts
        parts = [row.last(length).values for row, length in zip(rows, lengths, strict=True) if row is not None]
        return cls(torch.from_numpy(np.concatenate(parts)), torch.from_numpy(counts))

    def select(self, rows: "Tensor", width: int) -> "TokenColumn":
        """The rows with these indices, in this order; ``width`` columns of ``input_ids``."""
        import torch

        sizes = self.counts.sum(dim=1, dtype=torch.int64)
        starts = (sizes.cumsum(0) - sizes)[rows]
        own = sizes[rows]
        ends = own.cumsum(0)
        places = torch.arange(int(own.sum()), device=own.device)
        places = places + torch.repeat_interleave(starts - (ends - own), own)
        return TokenColumn(self.values[places], self.counts[rows, :width])

    def to(self, device: str) -> "TokenColumn":
        """A copy on ``device``; the host does not wait for it."""
        return TokenColumn(moved(self.values, device), moved(self.counts, device))


def moved(tensor: "Tensor", device: "str | torch.device") -> "Tensor":
    """A copy on ``device``, from pinned memory: the host does not wait until the device has done its other work."""
    if tensor.is_cpu and str(device) != "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
