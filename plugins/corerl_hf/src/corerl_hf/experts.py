"""The column ``experts`` of a batch: the experts of each token that the model has read."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corerl.contracts.token_columns import TokenValues

Rows = NDArray[np.int64]


class Experts:
    """
    Args:
        prompts: (tokens, layers, top_k) of each distinct prompt.
        prompt_of_row: index into ``prompts`` for each row of the batch.
    """

    def __init__(self, prompts: Sequence[Tensor], prompt_of_row: Sequence[int]) -> None:
        self._prompts = [prompt.cpu().numpy() for prompt in prompts]
        self._prompt_of_row = prompt_of_row
        self._runs: list[tuple[Rows, list[NDArray[np.integer]]]] = []
        """of each run of steps with the same rows, these, and the experts of each step"""

    def add(self, rows: Rows, steps: Sequence[Tensor]) -> None:
        """Add those of the next generated tokens, (rows, layers, top_k) each.

        Args:
            rows: of the batch, including every unfinished one.
        """
        if not steps:
            return
        if not self._runs or self._runs[-1][0] is not rows:
            self._runs.append((rows, []))
        self._runs[-1][1].extend(torch.stack(list(steps)).cpu().numpy())

    def of(self, row: int, length: int) -> TokenValues:
        """The column of prompt and response; the last of ``length`` response tokens was not read."""
        read = max(0, length - 1)
        parts, left = [self._prompts[self._prompt_of_row[row]]], read
        for rows, steps in self._runs:
            if left <= 0:
                break
            place = int(np.flatnonzero(rows == row)[0])
            parts.append(np.stack([step[place] for step in steps[:left]]))
            left -= len(steps)
        values = np.concatenate(parts)
        counts = np.zeros(len(parts[0]) + length, np.int32)
        counts[: len(values)] = 1
        return TokenValues(values, counts)
