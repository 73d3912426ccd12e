"""Readers: a teacher, as the annotator calls it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from corerl.contracts.experience import Experience


class Reading(NamedTuple):
    """Values at tokens of b rows.

    Attributes:
        mask: (b, T) bool, the tokens that have values; T is that of the rows.
        columns: name -> (N, ...) of these tokens in row-major order: ``log_probs`` for form ``sampled``; ``values`` for
            ``full`` (last hidden states) and ``top_k`` (log-probs of bins), the latter with ``top`` (token ids).
    """

    mask: Tensor
    columns: Mapping[str, Tensor]


class Reader(Protocol):
    """A teacher."""

    def __call__(self, batch: Experience, prompts: Sequence[Any], rows: Sequence[Any]) -> Reading:
        """The values at the trained tokens.

        Args:
            prompts: of each row (:class:`corerl.data.prompts.Prompt`).
            rows: of the step (:class:`corerl.batch.rollouts.Row`).
        """
        ...
