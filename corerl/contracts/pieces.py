"""Weights from sharded to sharded: an optional part of strategies, and of the policy's workers."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Box = tuple[tuple[int, int], ...]
"""(first, after the last) index in every dimension of a weight; () is a scalar"""


@dataclass(frozen=True)
class Piece:
    """The part of a weight that a process holds: ``tensor`` is ``box`` of the weight ``name`` of ``shape``.

    ``tensor`` is shared with the model, in any dtype and on any device; ``dtype`` is the one to send.
    """

    name: str
    shape: tuple[int, ...]
    box: Box
    tensor: "Tensor"
    dtype: "torch.dtype"


@runtime_checkable
class ShardedStrategy(Protocol):
    """A training strategy, or its worker, that names the pieces of the weights on its rank."""

    def sharded_weights(self, dtype: "torch.dtype | None" = None) -> AbstractContextManager[Sequence[Piece] | None]:
        """In the same order each time; valid within, in any memory. None: only whole weights can be sent."""
        ...
