"""Layouts of the rows of a micro-batch for the model: padded side by side, or packed end to end."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from corerl.contracts.experience import Experience


class Layout(NamedTuple):
    """The model's inputs.

    Attributes:
        inputs: keyword arguments of the model's forward.
        positions: (N,) int64, index in the flattened inputs that predicts each response token, in row-major order.
        real: (B, T) bool, true on response tokens.
        tokens: (M,) int64, index of each flattened input in the flattened ``input_ids``; -1 for a filler token.
    """

    inputs: dict[str, Any]
    positions: Tensor
    real: Tensor
    tokens: Tensor


def padded(batch: Experience) -> Layout:
    """(B, S - 1): rows are right-padded and attention is causal, so no token sees padding and no mask is needed."""
    inputs = batch.input_ids[:, :-1]
    positions, real = batch.prediction_index(inputs.shape[1])
    return Layout({"input_ids": inputs}, positions, real, _numbers(batch)[:, :-1].flatten())


def packed(batch: Experience) -> Layout:
    """(1, tokens): all rows, each without its last token, which predicts nothing, one after the other.

    ``position_ids`` start at 0 in each row; the starts of the rows have the names that transformers uses for flash
    attention.
    """
    width = batch.input_ids.shape[1]
    lengths = (batch.lengths - 1).clamp(min=1)
    steps = torch.arange(width, device=lengths.device)
    kept = steps < lengths[:, None]
    ends = lengths.cumsum(0)
    real, starts = batch.prediction_index(width)[1], ends - lengths
    columns = torch.arange(real.shape[1], device=lengths.device)
    positions = (starts + batch.prompt_lengths - 1)[:, None] + columns
    bounds = torch.nn.functional.pad(ends, (1, 0)).to(torch.int32)
    longest = int(lengths.max())
    inputs = {
        "input_ids": batch.input_ids[kept][None],
        "position_ids": steps.expand(len(batch), -1)[kept][None],
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": longest,
        "max_length_k": longest,
    }
    return Layout(inputs, positions[real], real, _numbers(batch)[kept])


def _numbers(batch: Experience) -> Tensor:
    """Each token's index in the flattened ``input_ids``."""
    return torch.arange(batch.input_ids.numel(), device=batch.input_ids.device).view_as(batch.input_ids)


def response_tokens(batch: Experience, places: Tensor) -> Tensor:
    """(N,) int64, the response tokens at these (N, 2) rows and steps."""
    rows, steps = places.unbind(1)
    return batch.input_ids[rows, batch.prompt_lengths[rows] + steps]


def by_response(values: Tensor, places: Tensor, shape: torch.Size) -> Tensor:
    """(B, T, ...) from the (N, ...) values of the response tokens, 0 elsewhere; neither pass waits for the device.

    Args:
        places: (N, 2) int64, row and step of each.
        shape: (B, T).
    """
    scattered = torch.zeros((*shape, *values.shape[1:]), dtype=values.dtype, device=values.device)
    return scattered.index_put(places.unbind(1), values)
