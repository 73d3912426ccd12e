"""Readers: a teacher, as the annotator calls it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.token_columns import TokenValues
from corerl.errors import RunError
from corerl_distill.contexts import Contexts, Read
from corerl_torch.media_store import COLUMN


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


def responses_of(batch: Experience) -> list[list[int]]:
    """The token ids of each response."""
    bounds = zip(batch.prompt_lengths.tolist(), batch.response_lengths.tolist(), strict=True)
    return [batch.input_ids[row, start : start + length].tolist() for row, (start, length) in enumerate(bounds)]


def in_context(contexts: Contexts, prompts: Sequence[Any], rows: Sequence[Any]) -> list[Read]:
    """The teacher's prompt of each row; in a branch of an episode, the tokens up to the first trained one follow.

    Raises:
        RunError: a branch does not begin with the prompt's tokens.
    """
    return [_behind(contexts.read(prompt), prompt, row) for prompt, row in zip(prompts, rows, strict=True)]


def _behind(read: Read, prompt: Any, row: Any) -> Read:
    start, tokens = len(prompt.token_ids), len(row.prompt_ids) + len(row.completion.token_ids)
    if tuple(row.prompt_ids[:start]) != tuple(prompt.token_ids):
        raise RunError(
            "a branch of an episode does not begin with its prompt, so a teacher with a context cannot read it: the "
            "agent changes the prompt's messages"
        )
    media = dict(read.media)
    if (own := row.completion.columns.get(COLUMN)) is not None:  # images of the prompt are those of the context
        further = own.last(tokens).cut(start, tokens)
        before = media.get(COLUMN, TokenValues(own.values[:0], np.zeros(len(read.token_ids), np.int32)))
        media[COLUMN] = before.joined(further)
    elif media:
        media = {name: values.widened(tokens - start) for name, values in media.items()}
    return Read([*read.token_ids, *row.prompt_ids[start:]], media)
