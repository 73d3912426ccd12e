"""The objective of a forward_backward: log-probs of any targets, and the loss of a request."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.objective import ObjectiveOutput
from corerl.contracts.token_outputs import TokenChunk, TokenOutputs, Wanted
from corerl_tinker.training.data import LossRequest, padded
from corerl_tinker.training.losses import LOSSES

CHUNK = 2048
"""positions whose logits exist at the same time"""
NAME = "target_log_probs"


@dataclass(frozen=True, eq=False)
class TargetLogProbs:
    """Log-probs of K targets of each position: see :class:`corerl.contracts.token_outputs.OfLogits`.

    Args:
        targets: (B, T, K) int64, by the rows' ``group_ids``.
    """

    targets: Tensor
    chunk_size: int = CHUNK

    def __call__(self, logits: Tensor, chunk: TokenChunk) -> Mapping[str, Tensor]:
        rows = chunk.batch.group_ids[chunk.rows].cpu()
        targets = self.targets[rows, chunk.steps.cpu()].to(logits.device)
        return {NAME: logits.float().log_softmax(dim=-1).gather(1, targets)}


@dataclass
class TinkerObjective:
    """The loss of a request; its log-probs are kept in ``log_probs``: row -> (T, K) float32 on the CPU.

    The loss is the sum of the terms of all tokens, in float32; ``loss`` adds them up in float64.

    Attributes:
        counts: False for the row of a rank that has none: its terms are 0, and nothing is kept.
    """

    request: LossRequest
    counts: bool = True
    loss: float = 0.0
    log_probs: dict[int, Tensor] = field(default_factory=dict)

    @functools.cached_property
    def targets(self) -> TargetLogProbs:
        return TargetLogProbs(padded([datum.targets for datum in self.request.data]))

    @functools.cached_property
    def inputs(self) -> dict[str, Tensor]:
        """Name -> (B, T, K); a value of the config is (1, 1, 1)."""
        config = {name: torch.tensor(value).reshape(1, 1, 1) for name, value in self.request.config.items()}
        names = self.request.data[0].inputs
        return config | {name: padded([datum.inputs[name] for datum in self.request.data]) for name in names}

    @property
    def wanted(self) -> frozenset[Wanted]:
        return frozenset({self.targets})

    def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
        assert outputs.of_logits is not None
        terms = self.terms(outputs.of_logits[NAME], batch.group_ids.cpu(), batch.response_lengths.cpu())
        if not self.counts:
            return ObjectiveOutput(terms.sum() * 0.0, {})
        total = terms.detach().double().sum()
        self.loss += float(total)
        return ObjectiveOutput(terms.sum(), {"loss": total})

    def terms(self, log_probs: Tensor, rows: Tensor, lengths: Tensor) -> Tensor:
        """(b, T, K) terms of these rows, 0 outside; the log-probs are kept."""
        steps = log_probs.shape[1]
        for place, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
            width = self.request.data[row].targets.shape[1]
            if self.counts:
                self.log_probs[row] = log_probs[place, :length, :width].detach().float().cpu()
        given = {
            name: (value if len(value) == 1 and name in self.request.config else value[rows, :steps]).to(
                log_probs.device
            )
            for name, value in self.inputs.items()
        }
        widths = torch.tensor([self.request.data[row].targets.shape[1] for row in rows.tolist()])
        real = (torch.arange(steps) < lengths[:, None])[:, :, None] & (
            torch.arange(log_probs.shape[2]) < widths[:, None]
        )[:, None, :]
        terms = LOSSES[self.request.loss].terms(log_probs, given)
        return torch.where(real.to(terms.device), terms, 0.0)
