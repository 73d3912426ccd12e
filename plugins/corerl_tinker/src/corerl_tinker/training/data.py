"""The data of a forward_backward, checked, and its form for a training strategy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corerl.contracts.experience import Experience, collate


@dataclass(frozen=True, eq=False)
class Datum:
    """One sequence of T tokens, with K targets at each.

    Attributes:
        tokens: (T,) int64, read by the model.
        targets: (T, K) int64; position t scores them as the token after ``tokens[t]``.
        inputs: name -> (T, K) float32 of the loss.
        is_flat: the client has sent (T,) tensors, and gets such back; K is 1.
    """

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    inputs: Mapping[str, NDArray[np.float32]]
    is_flat: bool


@dataclass(frozen=True, eq=False)
class LossRequest:
    """A forward_backward, or a forward alone.

    Attributes:
        loss: a name of :data:`corerl_tinker.training.losses.LOSSES`.
        config: its complete values.
    """

    loss: str
    config: Mapping[str, float]
    data: Sequence[Datum]
    backward: bool


def rows_of(sequences: Sequence[Sequence[int]]) -> Experience:
    """Rows whose "response" has a token for each position of a sequence, from the first on.

    A strategy computes the logits of the position before each response token. So a row is a sequence and one further
    token, which no position reads. ``group_ids`` are the numbers of the rows, which micro-batches keep; a loss ignores
    ``loss_weights``, by which strategies know rows that count.
    """
    prompts = [[int(sequence[0])] for sequence in sequences]
    rests = [[*map(int, sequence[1:]), 0] for sequence in sequences]
    rows = collate(prompts, rests, list(range(len(sequences))))
    return replace(rows, loss_weights=rows.response_mask.double())


def padded(arrays: Sequence[NDArray[np.generic]]) -> Tensor:
    """(B, T, K) of (T, K) arrays, 0 behind their ends."""
    shape = (len(arrays), max(len(each) for each in arrays), max(each.shape[1] for each in arrays))
    whole = np.zeros(shape, arrays[0].dtype)
    for row, each in enumerate(arrays):
        whole[row, : each.shape[0], : each.shape[1]] = each
    return torch.from_numpy(whole)
