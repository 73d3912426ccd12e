"""The column ``kept_tokens``: the tokens that top-p, top-k and min-p kept at each sampled token, from the engine.

Training replays them: logits of all other tokens are -inf, so log-probs, entropy and Σπ² are those of the distribution
that the engine sampled from, with the weights of the trainer. The kept set is a constant of the gradient.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.contracts.experience import Experience

COLUMN = "kept_tokens"

EXCLUDED = -1e4
"""log-prob of an excluded token in ``vocabulary_log_probs``: finite, so that differences are 0, and exp is 0"""


@dataclass(frozen=True)
class TokenSets:
    """Values of a column of tokens at response tokens.

    Attributes:
        values: (M,), of all tokens of all rows end to end.
        starts, counts: (B, W) int64, the values of the token in each column of ``input_ids``.
        prompt_lengths: (B,) int64.
    """

    values: Tensor
    starts: Tensor
    counts: Tensor
    prompt_lengths: Tensor

    @classmethod
    def of(cls, batch: Experience, name: str) -> "TokenSets | None":
        """Those of a column; None if it was not recorded."""
        column = batch.columns.get(name)
        if column is None:
            return None
        counts = column.counts.long()
        starts = (counts.flatten().cumsum(0) - counts.flatten()).view_as(counts)
        return cls(column.values, starts, counts, batch.prompt_lengths)

    def at(self, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The values of n response tokens.

        Args:
            places: (n, 2) int64, rows and steps.

        Returns:
            (m,) values; (m,) int64, the token, 0 to n - 1, that each belongs to; (n,) int64 number of values.
        """
        rows, columns = places[:, 0], self.prompt_lengths[places[:, 0]] + places[:, 1]
        inside = columns < self.counts.shape[1]
        columns = torch.where(inside, columns, 0)
        counts = torch.where(inside, self.counts[rows, columns], 0)
        owners = torch.repeat_interleave(counts)
        offsets = torch.arange(len(owners), device=owners.device) - (counts.cumsum(0) - counts)[owners]
        return self.values[self.starts[rows, columns][owners] + offsets], owners, counts

    def mask(self, places: Tensor, start: int, size: int) -> Tensor:
        """(n, size) bool, true on the values from ``start`` to ``start + size``; on all of a token without values."""
        values, owners, counts = self.at(places)
        values = values.long() - start
        inside = (values >= 0) & (values < size)
        mask = (counts == 0)[:, None].repeat(1, size)
        mask[owners[inside], values[inside]] = True
        return mask

    def padded(self, places: Tensor, width: int, filler: float) -> Tensor:
        """(n, width) values, in their order; ``filler`` behind them."""
        values, owners, counts = self.at(places)
        offsets = torch.arange(len(owners), device=owners.device) - (counts.cumsum(0) - counts)[owners]
        result = values.new_full((len(counts), width), filler)
        result[owners, offsets] = values
        return result


def kept_mask(batch: Experience, places: Tensor, size: int, start: int = 0) -> Tensor | None:
    """(n, size) bool, the tokens from ``start`` on that the engine kept; None if nothing was recorded.

    Args:
        places: (n, 2) int64, rows and steps of response tokens.
    """
    kept = TokenSets.of(batch, COLUMN)
    return None if kept is None else kept.mask(places, start, size)
