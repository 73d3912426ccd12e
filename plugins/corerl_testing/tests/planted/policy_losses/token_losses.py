"""Right policy losses, and the same with one flaw each."""

from typing import Any

import torch
from torch import Tensor

from corerl.contracts.losses import masked_mean
from corerl.contracts.policy_losses import LossOutput, Mean, PolicyLossInputs
from corerl.errors import MissingInputError
from planted.losses import doubled_backward, halved_by_a_hook, remembered_scale


def ratio(inputs: PolicyLossInputs) -> Tensor:
    """pi / pi_old."""
    return (inputs.log_probs - inputs.old_log_probs).clamp(-20, 20).exp()


def surrogate(inputs: PolicyLossInputs) -> LossOutput:
    """-A rho, and its mean ratio."""
    found = ratio(inputs)
    metrics = {"ratio": masked_mean(found.detach(), inputs.response_mask)}
    return LossOutput(-inputs.advantages * found, metrics)


def halved(inputs: PolicyLossInputs) -> LossOutput:
    """-A rho / 2."""
    return LossOutput(surrogate(inputs).terms / 2)


def stopped_weights(inputs: PolicyLossInputs) -> LossOutput:
    """-A sg(rho) log pi."""
    return LossOutput(-inputs.advantages * ratio(inputs).detach() * inputs.log_probs)


def sequence(inputs: PolicyLossInputs) -> LossOutput:
    """A ratio of the whole response."""
    mask = inputs.response_mask
    difference = torch.where(mask, inputs.log_probs - inputs.old_log_probs, 0.0)
    mean = difference.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    advantages = torch.where(mask, inputs.advantages, 0.0)
    return LossOutput(-advantages * mean.clamp(-20, 20).exp().expand_as(advantages))


def near_the_old_policy(inputs: PolicyLossInputs) -> LossOutput:
    """-A rho and a KL term whose gradient is 0 on-policy."""
    difference = (inputs.log_probs - inputs.old_log_probs).clamp(-20, 20)
    return LossOutput(-inputs.advantages * difference.exp() + 0.5 * (difference.expm1() - difference))


def near_by_the_absolute_ratio(inputs: PolicyLossInputs) -> LossOutput:
    difference = (inputs.log_probs - inputs.old_log_probs).clamp(-20, 20)
    return LossOutput(-inputs.advantages * difference.exp() + 0.5 * difference.abs())


def clipped(inputs: PolicyLossInputs) -> LossOutput:
    """max(-A rho, -A clip(rho))."""
    found, advantages = ratio(inputs), inputs.advantages
    return LossOutput(torch.maximum(-advantages * found, -advantages * found.clamp(0.8, 1.2)))


def clipped_on_the_wrong_side(inputs: PolicyLossInputs) -> LossOutput:
    found, advantages = ratio(inputs), inputs.advantages
    return LossOutput(torch.minimum(-advantages * found, -advantages * found.clamp(0.8, 1.2)))


def weighed_by_column(inputs: PolicyLossInputs) -> LossOutput:
    columns = torch.arange(1, inputs.log_probs.shape[1] + 1, dtype=inputs.log_probs.dtype)
    return LossOutput(surrogate(inputs).terms / columns)


def rising_tokens_alone(inputs: PolicyLossInputs) -> LossOutput:
    found = ratio(inputs)
    return LossOutput(torch.where(found >= 1, -inputs.advantages * found, 0.0))


def micro_batch_mean(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(surrogate(inputs).terms / inputs.response_mask.sum().clamp(min=1))


def centred_in_the_micro_batch(inputs: PolicyLossInputs) -> LossOutput:
    mean = torch.where(inputs.response_mask, inputs.advantages, 0.0).mean()
    return LossOutput(-(inputs.advantages - mean) * ratio(inputs))


def one_number(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(surrogate(inputs).terms.sum())


def only_the_terms(inputs: PolicyLossInputs) -> Any:
    return surrogate(inputs).terms


def always_float64(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(surrogate(inputs).terms.double())


def without_clamp(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(-inputs.advantages * (inputs.log_probs - inputs.old_log_probs).exp())


def wrong_sign(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(inputs.advantages * ratio(inputs))


def ratio_upside_down(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(-inputs.advantages * (inputs.old_log_probs - inputs.log_probs).clamp(-20, 20).exp())


def ignores_negative_advantages(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(-inputs.advantages.clamp(min=0) * ratio(inputs))


def no_gradient(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(-inputs.advantages * ratio(inputs).detach())


def sign_of_the_advantage(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(-inputs.advantages.sign() * ratio(inputs))


def own_entropy_bonus(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(surrogate(inputs).terms + 0.01 * inputs.log_probs)


def sums_padding(inputs: PolicyLossInputs) -> LossOutput:
    mean = (inputs.log_probs - inputs.old_log_probs).mean(dim=1, keepdim=True)
    return LossOutput(-inputs.advantages * mean.clamp(-20, 20).exp().expand_as(inputs.advantages))


def nan_of_an_empty_row(inputs: PolicyLossInputs) -> LossOutput:
    mask = inputs.response_mask
    difference = ((inputs.log_probs - inputs.old_log_probs) * mask).sum(dim=1, keepdim=True)
    mean = difference.clamp(-20, 20) / mask.sum(dim=1, keepdim=True)
    return LossOutput(-inputs.advantages * mean.exp().expand_as(inputs.advantages))


def modifies_its_input(inputs: PolicyLossInputs) -> LossOutput:
    terms = surrogate(inputs).terms
    inputs.advantages.clamp_(min=0)
    return LossOutput(terms)


def random_dropout(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(surrogate(inputs).terms * (torch.rand(inputs.advantages.shape) < 0.5))


def first_row_counts_twice(inputs: PolicyLossInputs) -> LossOutput:
    terms = surrogate(inputs).terms
    return LossOutput(torch.cat([2 * terms[:1], terms[1:]]))


def loops_over_rows(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(torch.stack([row * 1.0 for row in surrogate(inputs).terms]))


def in_16_bits(inputs: PolicyLossInputs) -> LossOutput:
    difference = (inputs.log_probs.bfloat16() - inputs.old_log_probs.bfloat16()).clamp(-20, 20)
    return LossOutput(-inputs.advantages * difference.exp().to(inputs.advantages.dtype))


def remembers_a_scale(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(surrogate(inputs).terms / remembered_scale(inputs.advantages))


def mean_as_a_metric(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(surrogate(inputs).terms, {"ratio": Mean(ratio(inputs).detach().mean(), 1)})


def a_number_as_a_metric(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(surrogate(inputs).terms, {"ratio": 1.0})  # type: ignore[dict-item]


def metric_with_its_graph(inputs: PolicyLossInputs) -> LossOutput:
    mask = inputs.response_mask
    return LossOutput(surrogate(inputs).terms, {"ratio": Mean(ratio(inputs)[mask].sum(), mask.sum())})


def metric_of_padding(inputs: PolicyLossInputs) -> LossOutput:
    above = (ratio(inputs).detach() > 1.2).sum()
    return LossOutput(surrogate(inputs).terms, {"above": Mean(above, inputs.response_mask.numel())})


def metric_at_masked_tokens(inputs: PolicyLossInputs) -> LossOutput:
    found = ratio(inputs).detach()
    return LossOutput(surrogate(inputs).terms, {"ratio": Mean(found.sum(), inputs.response_mask.sum())})


def metric_of_empty_rows(inputs: PolicyLossInputs) -> LossOutput:
    rows = torch.where(inputs.response_mask, ratio(inputs).detach(), 1.0).mean(dim=1)
    return LossOutput(surrogate(inputs).terms, {"ratio_of_rows": Mean(rows.sum(), len(rows))})


def wrong_backward(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(doubled_backward(surrogate(inputs).terms))


def wrong_backward_beside_detach(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(doubled_backward(stopped_weights(inputs).terms))


def hook_beside_detach(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(halved_by_a_hook(stopped_weights(inputs).terms))


class _WithSlopes(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, log_probs: Tensor, terms: Tensor, slopes: Tensor) -> Tensor:
        context.save_for_backward(slopes)
        return terms

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0] * context.saved_tensors[0], None, None


def wrong_slopes_of_no_grad(inputs: PolicyLossInputs) -> LossOutput:
    """Terms without a graph, and gradients without the factor rho."""
    with torch.no_grad():
        terms = surrogate(inputs).terms
    result: Tensor = _WithSlopes.apply(inputs.log_probs, terms, -inputs.advantages)  # type: ignore[no-untyped-call]
    return LossOutput(result)


def towards_a_teacher(inputs: PolicyLossInputs) -> LossOutput:
    """The teacher's log-ratio for the advantage."""
    if inputs.ref_log_probs is None:
        raise MissingInputError("ref_log_probs", 'needs={"ref"}')
    return LossOutput((inputs.log_probs - inputs.ref_log_probs).detach() * ratio(inputs))


def away_from_the_teacher(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(-towards_a_teacher(inputs).terms)


def without_selected(inputs: PolicyLossInputs) -> LossOutput:
    """Selected tokens have no term."""
    if inputs.selected is None:
        raise MissingInputError("selected", "select_tokens=…")
    return LossOutput(torch.where(inputs.selected, 0.0, surrogate(inputs).terms))


def a_third(inputs: PolicyLossInputs, uniforms: Tensor) -> Tensor:
    """Of all tokens."""
    return inputs.response_mask & (uniforms < 0.3)


def own_randomness(inputs: PolicyLossInputs, uniforms: Tensor) -> Tensor:
    return torch.rand(uniforms.shape) < 0.5


def first_rows(inputs: PolicyLossInputs, uniforms: Tensor) -> Tensor:
    return (torch.arange(len(uniforms)) < 2)[:, None].expand(uniforms.shape)


def one_flag_a_row(inputs: PolicyLossInputs, uniforms: Tensor) -> Tensor:
    return uniforms[:, 0] < 0.3


def row_by_row(inputs: PolicyLossInputs, uniforms: Tensor) -> Tensor:
    return torch.stack([row < 0.3 for row in uniforms])
