"""The objective of ``distill`` in the games of :mod:`corerl_testing.enumerable`; loaded by the conformance kit alone.

The teacher is the game's reference policy. Its logits take the place of last hidden states, and its output layer is the
identity. The divergence here is a plain formula on probabilities, for comparison with
:mod:`corerl_distill.divergences`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.token_columns import TokenColumn
from corerl.contracts.token_outputs import TokenChunk
from corerl_distill.columns import column, column_name
from corerl_distill.of_logits import OfTeachers, TopK
from corerl_distill.options import DistillOptions
from corerl_testing.enumerable.objectives import Objective, expected_score
from corerl_testing.enumerable.points import Point

TEACHER = "teacher"


def objective(options: DistillOptions) -> Objective:
    """Minus the expected sum of the tokens' divergences; the probability of each prefix has no gradient."""

    def value(point: Point, n: int) -> Tensor:
        found = -options.coefficient * _expected(point, options)
        return found + expected_score(point, n) if options.use_task_reward else found

    def columns(batch: Experience, point: Point, episodes: Tensor) -> Mapping[str, TokenColumn]:
        return _columns(batch, point.ref_vocabulary_log_probs[episodes], options)

    return Objective(value, of_logits=OfTeachers(options, 1.0, {TEACHER: None}), columns=columns)


def _expected(point: Point, options: DistillOptions) -> Tensor:
    mask = point.game.mask
    policy, teacher = (each[mask].exp() for each in (point.vocabulary_log_probs, point.ref_vocabulary_log_probs))
    if options.form == "top_k" and options.top_k < teacher.shape[1]:
        top = teacher.topk(options.top_k, dim=1).indices
        policy, teacher = (
            torch.cat([each.gather(1, top), 1 - each.gather(1, top).sum(1, True)], dim=1) for each in (policy, teacher)
        )
    reached = point.probabilities.detach()[:, None].expand_as(mask)[mask]
    return (reached * _divergence(policy, teacher, options)).sum()


def _divergence(policy: Tensor, teacher: Tensor, options: DistillOptions) -> Tensor:
    if options.divergence == "reverse_kl":
        return _kl(policy, teacher)
    if options.divergence == "forward_kl":
        return _kl(teacher, policy)
    middle = options.beta * teacher + (1 - options.beta) * policy
    return options.beta * _kl(teacher, middle) + (1 - options.beta) * _kl(policy, middle)


def _kl(of: Tensor, other: Tensor) -> Tensor:
    return (of * (of / other).log()).sum(dim=1)


def _columns(batch: Experience, teacher: Tensor, options: DistillOptions) -> Mapping[str, TokenColumn]:
    """As the annotator of a run sets them."""
    rows, steps = batch.response_mask.nonzero(as_tuple=True)
    log_probs = teacher[rows, steps]
    values = {"values": log_probs}
    if options.form == "sampled":
        tokens = batch.input_ids[rows, batch.prompt_lengths[rows] + steps]
        values = {"log_probs": log_probs.gather(1, tokens[:, None]).squeeze(1)}
    if options.form == "top_k":
        chunk = TokenChunk(batch, rows, steps, head=lambda hidden: hidden)
        found = TopK(options.top_k, 1.0, log_probs.shape[1])(log_probs, chunk)
        values = {"values": found["log_probs"], "top": found["top"].to(torch.int32)}
    every = torch.arange(len(batch))
    return {
        column_name(TEACHER, name): column(batch, every, batch.response_mask, each) for name, each in values.items()
    }
