"""KL types that take log-probs of the whole vocabulary (need ``logits``).

The reference's log-probs of a mini-batch are a column of tokens. The divergence is a function of the policy's logits,
which exist in chunks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.kl_types import KLType
from corerl.contracts.losses import Mean
from corerl.contracts.token_columns import TokenColumn
from corerl.contracts.token_outputs import OfLogits, TokenChunk, TokenOutputs
from corerl.errors import RunError
from corerl_torch.kept_tokens import EXCLUDED, TokenSets, kept_mask
from corerl_torch.token_statistics import log_distribution

COLUMN = "reference/log_probs"
"""of the whole vocabulary"""

NAME = "kl_of_vocabulary"
"""of the result"""


@dataclass(frozen=True)
class LogProbs:
    """(n, V) log-probs of the whole vocabulary, or of the kept tokens; excluded ones have -1e4."""

    temperature: float
    chunk_size: int = 2**31

    def __call__(self, logits: Tensor, chunk: TokenChunk) -> dict[str, Tensor]:
        return {COLUMN: self.of(logits, chunk)}

    def of(self, logits: Tensor, chunk: TokenChunk) -> Tensor:
        """The same alone."""
        kept = kept_mask(chunk.batch, torch.stack([chunk.rows, chunk.steps], dim=1), logits.shape[1])
        found = log_distribution(logits, self.temperature, kept)
        return found if kept is None else found.clamp(min=EXCLUDED)


@dataclass(frozen=True)
class VocabularyKL:
    """(n,) terms of a KL type; the batch has the reference's column."""

    kl_type: KLType
    temperature: float
    chunk_size: int = 2**31

    def __call__(self, logits: Tensor, chunk: TokenChunk) -> dict[str, Tensor]:
        column = TokenSets.of(chunk.batch, COLUMN)
        assert column is not None
        reference, _, _ = column.at(torch.stack([chunk.rows, chunk.steps], dim=1))
        policy = LogProbs(self.temperature).of(logits, chunk)
        return {NAME: self.kl_type(policy[None], reference[None].to(policy.dtype))[0]}


class VocabularyKLTerm:
    """The KL loss, see :class:`corerl.contracts.objective.LossTerm`."""

    name = "kl_loss"

    def __init__(self, kl_type: KLType, coefficient: float, temperature: float) -> None:
        self.coefficient = coefficient
        self.of_logits: OfLogits | None = VocabularyKL(kl_type, temperature)

    def __call__(self, outputs: TokenOutputs, batch: Experience) -> Tensor:
        assert outputs.of_logits is not None
        return outputs.of_logits[NAME]


@dataclass(frozen=True)
class ReferenceLogProbs:
    """Adds the reference's column to each mini-batch, see :class:`corerl.contracts.annotators.Annotator`.

    Attributes:
        reference: workers (:class:`corerl.trainer.workers.ReferenceWorker`).
        vocabulary: of the model.
        most: largest GiB of a mini-batch's log-probs, ``ref.max_vocabulary_log_probs_gb``.
    """

    reference: Any
    vocabulary: int
    temperature: float
    most: float
    part: str = "ref"

    def annotate(self, mini_batch: Experience, rows: Tensor, rollouts: Any) -> Mapping[str, Mean]:
        self.add(mini_batch)
        return {}

    def add(self, batch: Experience) -> None:
        """
        Raises:
            RunError: the log-probs take more than ``most``.
        """
        rows, tokens = batch.response_mask.shape
        gigabytes = rows * tokens * self.vocabulary * 4 / 2**30
        if gigabytes > self.most:
            raise RunError(
                f"log-probs of {rows} × {tokens} tokens over a vocabulary of {self.vocabulary} take {gigabytes:.1f} "
                f"GiB, more than ref.max_vocabulary_log_probs_gb = {self.most:g}: use a smaller "
                "actor.ppo_mini_batch_size, or a KL type of the sampled tokens such as low_var_kl"
            )
        found = self.reference.forward(batch.tokens(), [LogProbs(self.temperature)]).of_logits[COLUMN]
        batch.columns[COLUMN] = column(batch, found)


def reference_log_probs(plan: Any, models: Any) -> ReferenceLogProbs:
    """Of a run (:class:`corerl.trainer.plan.Plan`, :class:`corerl.trainer.models.Models`)."""
    config = plan.config
    most = config.ref.max_vocabulary_log_probs_gb
    return ReferenceLogProbs(models.reference, models.shape.vocabulary, config.rollout.temperature, most)


def column(batch: Experience, values: Tensor) -> TokenColumn:
    """A value, or a row of values, of every response token, from a (B, T, …) column."""
    real = torch.arange(values.shape[1]) < batch.response_lengths[:, None]
    rows, steps = real.nonzero(as_tuple=True)
    counts = torch.zeros(batch.input_ids.shape, dtype=torch.int32)
    counts[rows, batch.prompt_lengths[rows] + steps] = 1
    return TokenColumn(values[rows, steps], counts)
