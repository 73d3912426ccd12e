"""Functions of logits: of the policy, beside the columns of the teachers; of a teacher, its most probable tokens."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.contracts.config import TrainConfig
from corerl.contracts.token_outputs import TokenChunk
from corerl_distill.columns import column_name, find
from corerl_distill.divergences import bins, divergence, exact
from corerl_distill.head import TeacherHead
from corerl_distill.options import CHUNK, DistillOptions


def make(config: TrainConfig, options: DistillOptions) -> "OfTeachers":
    """In each worker of the policy; see :class:`corerl.contracts.token_outputs.OfLogitsFactory`."""
    heads: dict[str, TeacherHead | None] = {}
    averaged = [name for name, teacher in options.named.items() if teacher.weights == "ema"]
    for name, teacher in options.named.items():
        own_head = options.form == "full" and teacher.weights == "own"
        heads[name] = TeacherHead(teacher, config) if own_head else None
    return OfTeachers(options, config.rollout.temperature, heads, averaged)


class OfTeachers:
    """The divergence of each token from the row's teacher; of form ``sampled`` the teacher's log-prob of the token.

    Both are 0 at tokens without a teacher's values, which are not trained on.

    Args:
        heads: output layers by teacher; None: the policy's own, which the teacher is.
        averaged: teachers that are the average of the policy's weights.
    """

    def __init__(
        self,
        options: DistillOptions,
        temperature: float,
        heads: Mapping[str, TeacherHead | None],
        averaged: Collection[str] = (),
    ) -> None:
        self.chunk_size = options.chunk_size
        self._options, self._temperature, self._heads = options, temperature, heads
        self._averaged = averaged

    def __call__(self, logits: Tensor, chunk: TokenChunk) -> dict[str, Tensor]:
        values = exact(logits[:, 0]) * 0.0  # with the graph of the logits, also if no token has a teacher
        for name in self._heads:
            values = self._add(values, logits, chunk, name)
        sampled = self._options.form == "sampled"
        return {"teacher_log_probs": values.detach()} if sampled else {"divergence": values}

    def _add(self, values: Tensor, logits: Tensor, chunk: TokenChunk, name: str) -> Tensor:
        """With the tokens of one teacher."""
        places = chunk.batch, chunk.rows, chunk.steps
        batch, rows, steps = places
        if self._options.form == "sampled":
            found = find(batch, column_name(name, "log_probs"), rows, steps)
            return values if found is None else values.index_add(0, found.tokens, found.values.to(values.dtype))
        found = find(batch, column_name(name, "values"), rows, steps)
        if found is None or not len(found.tokens):
            return values
        own = logits if len(found.tokens) == len(logits) else logits[found.tokens]
        top = find(batch, column_name(name, "top"), rows, steps)
        teacher = found.values if top is not None else self._distribution(found.values, chunk, name)
        of_both = min(own.shape[1], teacher.shape[1]) if top is None else own.shape[1]
        if top is None and teacher.shape[1] > of_both:
            teacher = torch.log_softmax(teacher[:, :of_both], dim=-1)
        part = divergence(
            own[:, :of_both],
            teacher,
            self._options.divergence,
            beta=self._options.beta,
            temperature=self._temperature,
            top=None if top is None else top.values.long(),
        )
        return values.index_add(0, found.tokens, part)

    @torch.no_grad()
    def _distribution(self, hidden: Tensor, chunk: TokenChunk, name: str) -> Tensor:
        """(m, V) log-probs of the teacher."""
        head = self._heads[name] or (chunk.averaged_head if name in self._averaged else chunk.head)
        assert head is not None
        return torch.log_softmax(exact(head(hidden)) / self._temperature, dim=-1)


@dataclass(frozen=True)
class TopK:
    """Of a teacher's logits: the ``k`` most probable tokens, and the log-probs of their bins.

    Attributes:
        vocabulary: of the policy: tokens beyond it have no probability.
    """

    k: int
    temperature: float
    vocabulary: int
    chunk_size: int = CHUNK

    def __call__(self, logits: Tensor, chunk: TokenChunk) -> dict[str, Tensor]:
        log_probs = torch.log_softmax(exact(logits[:, : self.vocabulary]) / self.temperature, dim=-1)
        top = log_probs.topk(min(self.k, log_probs.shape[1]), dim=1).indices
        return {"top": top, "log_probs": bins(log_probs, top)}
