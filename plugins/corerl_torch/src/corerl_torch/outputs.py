"""Outputs of a model at response tokens: from values of single tokens to (B, T) columns, and over micro-batches."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.token_outputs import OfLogits, TokenChunk, TokenOutputs, Wanted
from corerl_torch import layout

_OF_LOGITS = "of_logits/"


def functions(wanted: Collection[Wanted]) -> list[OfLogits]:
    """The functions of logits among the wanted outputs."""
    return [each for each in wanted if not isinstance(each, str)]


def chunk_size(size: int | None, wanted: Collection[Wanted]) -> int | None:
    """The smallest of ``size`` and the chunks of the wanted functions; None: no limit."""
    sizes = [each.chunk_size for each in functions(wanted)]
    return min([*sizes, size]) if size is not None else min(sizes, default=None)


def results(
    wanted: Collection[Wanted],
    logits: Tensor,
    batch: Experience,
    places: Tensor,
    head: Callable[[Tensor], Tensor],
    averaged_head: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, Tensor]:
    """The results of the wanted functions for the (n, V) logits of a chunk.

    Args:
        places: (n, 2) int64, rows and steps of the tokens.
    """
    chunk = TokenChunk(batch, places[:, 0], places[:, 1], head, averaged_head)
    given = [each(logits, chunk) for each in functions(wanted)]
    return {_OF_LOGITS + name: value for each in given for name, value in each.items()}


def token_outputs(values: Mapping[str, Tensor], places: Tensor, shape: torch.Size) -> TokenOutputs:
    """The (N, ...) values of response tokens, those of functions too, as (B, T, ...) columns, 0 elsewhere.

    Args:
        places, shape: as of :func:`~corerl_torch.layout.by_response`.
    """
    columns: dict[str, Any] = {name: layout.by_response(value, places, shape) for name, value in values.items()}
    return grouped(columns)


class Columns:
    """Columns of a whole batch on the CPU, from those of its micro-batches.

    Args:
        shape: (B, T) of the batch.

    Attributes:
        flat: name -> column, as from :func:`flat`.
    """

    def __init__(self, shape: torch.Size) -> None:
        self._shape = shape
        self.flat: dict[str, Tensor] = {}

    def add(self, rows: Tensor, outputs: TokenOutputs) -> None:
        """Put the outputs of a micro-batch at these rows of the batch; without rows they give only the names."""
        for name, part in flat(outputs).items():
            if name not in self.flat:
                self.flat[name] = torch.zeros(*self._shape, *part.shape[2:], dtype=part.dtype)
            if len(rows):
                self.flat[name][rows, : part.shape[1]] = part.cpu()

    def outputs(self) -> TokenOutputs:
        """All of them."""
        return grouped(self.flat)


def flat(outputs: TokenOutputs) -> dict[str, Tensor]:
    """Name -> column, of the given outputs and of the results of functions."""
    given = {name: value for name, value in outputs._asdict().items() if value is not None}
    of_logits = given.pop("of_logits", {})
    return given | {_OF_LOGITS + name: value for name, value in of_logits.items()}


def grouped(columns: Mapping[str, Any]) -> TokenOutputs:
    """Undo :func:`flat`."""
    columns = dict(columns)
    names = [name for name in columns if name.startswith(_OF_LOGITS)]
    of_logits = {name.removeprefix(_OF_LOGITS): columns.pop(name) for name in names}
    return TokenOutputs(**columns, of_logits=of_logits or None)
