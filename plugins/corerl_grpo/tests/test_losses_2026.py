"""LUSPO, VESPO and A2PO against their papers' objectives in plain Python, value and gradient."""

import math

import pytest
import torch

from corerl.contracts.policy_losses import PolicyLossInputs
from corerl.errors import MissingInputError
from corerl.objective import loss_weights
from corerl_grpo.losses.a2po import a2po
from corerl_grpo.losses.luspo import luspo
from corerl_grpo.losses.options import A2poOptions, LuspoOptions, VespoOptions
from corerl_grpo.losses.vespo import vespo

LUSPO = LuspoOptions(clip_ratio_low=0.1, clip_ratio_high=0.15)
VESPO = VespoOptions(k_pos=2.0, lambda_pos=3.0, k_neg=3.0, lambda_neg=1.5)
A2PO = A2poOptions(beta=0.3)


def batch(scale):
    """Eight responses of different lengths, gaps in their masks, one without a token; one advantage each."""
    generator = torch.Generator().manual_seed(2)
    old = -3 * torch.rand(8, 7, generator=generator, dtype=torch.float64)

    def near():
        return old + scale * torch.randn(8, 7, generator=generator, dtype=torch.float64)

    advantages = torch.randn(8, 1, generator=generator, dtype=torch.float64).expand(8, 7).clone()
    mask = torch.rand(8, 7, generator=generator) < 0.7
    mask[3] = False
    return PolicyLossInputs(near().requires_grad_(), old, advantages, mask, ref_log_probs=near())


def rows(inputs):
    """(row, its tokens, log pi, log pi_old, log pi_ref, A) of each response with a token, as plain numbers."""
    for i in range(8):
        tokens = [t for t in range(7) if inputs.response_mask[i, t]]
        if tokens:
            columns = (inputs.log_probs, inputs.old_log_probs, inputs.ref_log_probs)
            yield i, tokens, *([float(each[i, t]) for t in tokens] for each in columns), float(inputs.advantages[i, 0])


def luspo_objective(inputs):
    """The mean over responses of n times GSPO's clipped term; the ratio's slope by each log pi is ratio / n."""
    loss, gradient = 0.0, torch.zeros(8, 7, dtype=torch.float64)
    for i, tokens, log_probs, old, _, a in rows(inputs):
        n = len(tokens)
        ratio = math.exp(math.fsum(x - y for x, y in zip(log_probs, old, strict=True)) / n)
        clipped = min(max(ratio, 0.9), 1.15)
        loss -= n * min(ratio * a, clipped * a) / 7
        if ratio * a <= clipped * a:
            gradient[i, tokens] = -n * a * ratio / n / 7
    return loss, gradient


def vespo_objective(inputs):
    """The mean over tokens of -phi(W) A log pi, phi held fixed."""
    loss, gradient = 0.0, torch.zeros(8, 7, dtype=torch.float64)
    total = int(inputs.response_mask.sum())
    for i, tokens, log_probs, old, _, a in rows(inputs):
        weight = math.exp(math.fsum(x - y for x, y in zip(log_probs, old, strict=True)))
        k, decay = (2.0, 3.0) if a >= 0 else (3.0, 1.5)
        phi = weight**k * math.exp(decay * (1 - weight))
        loss -= phi * a * math.fsum(log_probs) / total
        gradient[i, tokens] = -phi * a / total
    return loss, gradient


def a2po_objective(inputs):
    """The mean over responses of (beta log pi / pi_ref - A)²."""
    loss, gradient = 0.0, torch.zeros(8, 7, dtype=torch.float64)
    for i, tokens, log_probs, _, ref, a in rows(inputs):
        error = 0.3 * math.fsum(x - y for x, y in zip(log_probs, ref, strict=True)) - a
        loss += error**2 / 7
        gradient[i, tokens] = 2 * 0.3 * error / 7
    return loss, gradient


@pytest.mark.parametrize(
    ("loss", "options", "mode", "objective"),
    [
        (luspo, LUSPO, "seq-mean-token-sum", luspo_objective),
        (vespo, VESPO, "token-mean", vespo_objective),
        (a2po, A2PO, "seq-mean-token-mean", a2po_objective),
    ],
)
@pytest.mark.parametrize("scale", [0.05, 0.6])
def test_value_and_gradient_are_those_of_the_paper(loss, options, mode, objective, scale):
    inputs = batch(scale)
    total = (loss(inputs, options).terms * loss_weights(inputs.response_mask, mode)).sum()
    total.backward()
    with torch.no_grad():
        expected, gradient = objective(inputs)
    assert total.item() == pytest.approx(expected, rel=1e-11)
    assert torch.allclose(inputs.log_probs.grad, gradient, rtol=1e-10, atol=1e-14)


def test_the_weight_of_vespo_is_1_on_policy_and_largest_at_k_over_lambda():
    def weight(ratio):
        log_probs = torch.tensor([[math.log(ratio)]], dtype=torch.float64)
        inputs = PolicyLossInputs(log_probs, torch.zeros(1, 1), torch.ones(1, 1).double(), torch.ones(1, 1).bool())
        return vespo(inputs, VESPO).metrics["vespo_weight"].value

    assert weight(1.0) == pytest.approx(1.0, rel=1e-12)
    peak = weight(2 / 3)
    assert weight(0.6) < peak > weight(0.75)
    assert weight(1e-9) < 1e-12 and weight(30.0) < 1e-12


def test_the_metric_of_a2po_is_beta_times_the_log_ratio_of_the_response():
    log_probs = torch.tensor([[-1.0, -1.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False]])
    inputs = PolicyLossInputs(log_probs, log_probs, torch.zeros(1, 3), mask, ref_log_probs=log_probs - 2.0)
    assert a2po(inputs, A2PO).metrics["implicit_reward"].value == pytest.approx(0.3 * 4.0)


def test_a2po_without_a_reference_names_the_missing_input():
    numbers = torch.zeros(1, 1)
    with pytest.raises(MissingInputError, match="'ref_log_probs'"):
        a2po(PolicyLossInputs(numbers, numbers, numbers, numbers == 0), A2PO)
