"""Tinker's losses: the formulas in float64, and the losses and gradients of CoreRL's own policy losses."""

import numpy as np
import pytest
import torch
from tinker_toys import loss_request, trainer

from corerl.contracts.objective import ObjectiveOutput
from corerl.contracts.policy_losses import PolicyLossInputs
from corerl_grpo.losses.cispo import cispo
from corerl_grpo.losses.dro import dro
from corerl_grpo.losses.options import CispoOptions, DroOptions, VanillaOptions
from corerl_grpo.losses.vanilla import vanilla
from corerl_tinker.training.data import Datum, LossRequest, rows_of
from corerl_tinker.training.losses import LOSSES
from corerl_tinker.training.states import Adapter

CONFIGS = {
    "importance_sampling": {},
    "ppo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.28},
    "cispo": {"clip_low_threshold": 0.5, "clip_high_threshold": 1.5},
    "dro": {"beta": 0.3},
}
OWN = {
    "importance_sampling": (vanilla, VanillaOptions(clip_ratio_low=1.0, clip_ratio_high=1e9, clip_ratio_c=1e9)),
    "ppo": (vanilla, VanillaOptions(clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=1e9)),
    "cispo": (cispo, CispoOptions(clip_ratio_low=0.5, clip_ratio_high=0.5)),
    "dro": (dro, DroOptions(beta=0.3)),
}


def expected(loss, config, log_probs, inputs):
    """The formulas, one token at a time."""
    total = 0.0
    for place in np.ndindex(log_probs.shape):
        new = float(log_probs[place])
        if loss == "cross_entropy":
            total -= new * float(inputs["weights"][place])
            continue
        old, advantage = float(inputs["logprobs"][place]), float(inputs["advantages"][place])
        ratio = np.exp(new - old)
        clipped = min(max(ratio, config.get("clip_low_threshold", 0)), config.get("clip_high_threshold", np.inf))
        total -= {
            "importance_sampling": ratio * advantage,
            "ppo": min(ratio * advantage, clipped * advantage),
            "cispo": clipped * advantage * new,
            "dro": new * advantage - config.get("beta", 0) * (new - old) ** 2 / 2,
        }[loss]
    return total


@pytest.fixture(scope="module")
def model():
    made = trainer()
    state = made.new_state(Adapter(4, 32, 1))
    with torch.no_grad():  # B of 0 would hide half of the gradients
        for weights in state.weights:
            weights.add_(torch.randn(weights.shape, generator=torch.Generator().manual_seed(0)), alpha=0.02)
    return made, state


def gradients(made, state):
    made.slot.hold(state)
    taken = [parameter.grad.clone() for _, parameter in made.slot.weights.own.items()]
    made.strategy.optimizer.zero_grad(set_to_none=True)
    return taken


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_a_loss_is_the_plain_sum_of_its_formula_over_the_tokens(model, loss):
    made, state = model
    request = loss_request(loss, **CONFIGS.get(loss, {}))
    result = made.forward_backward(state, request)
    gradients(made, state)
    wanted = sum(
        expected(loss, request.config, found[:, None].astype(np.float64), datum.inputs)
        for found, datum in zip(result.log_probs, request.data, strict=True)
    )
    assert result.loss == pytest.approx(wanted, rel=1e-6)
    forward = made.forward_backward(state, LossRequest(loss, request.config, request.data, backward=False))
    assert forward.loss == pytest.approx(wanted, rel=1e-6)
    assert not made.slot.has_gradient()


@pytest.mark.parametrize("loss", sorted(OWN))
def test_losses_and_gradients_are_those_of_corerls_own_losses(model, loss):
    made, state = model
    request = loss_request(loss, seed=3, **CONFIGS[loss])
    own, options = OWN[loss]

    def objective(outputs, batch):
        """CoreRL's loss, with the targets of the data as the tokens of the rows."""
        log_probs = outputs.log_probs
        old, advantages = torch.zeros_like(log_probs), torch.zeros_like(log_probs)
        for place, row in enumerate(batch.group_ids.tolist()):
            for target, name in ((old, "logprobs"), (advantages, "advantages")):
                values = torch.from_numpy(shifted.data[row].inputs[name][:, 0])
                target[place, : len(values)] = values
        real = torch.arange(log_probs.shape[1]) < batch.response_lengths[:, None]
        terms = own(PolicyLossInputs(log_probs, old, advantages, real), options).terms
        return ObjectiveOutput(torch.where(real, terms, 0.0).sum())

    def next_tokens(datum):
        targets = np.append(datum.tokens[1:], 0)[:, None]
        return Datum(datum.tokens, targets, datum.inputs, True)

    shifted = LossRequest(loss, request.config, [next_tokens(datum) for datum in request.data], True)
    objective.wanted = frozenset({"log_probs"})
    mine = made.forward_backward(state, shifted)
    taken = gradients(made, state)
    numbers = made.strategy.accumulate(rows_of([list(datum.tokens) for datum in shifted.data]), objective)
    wanted = gradients(made, state)
    assert mine.loss == pytest.approx(numbers.loss, rel=1e-6)
    scale = max(float(each.abs().max()) for each in wanted)
    assert max(float((a - b).abs().max()) for a, b in zip(taken, wanted, strict=True)) <= 1e-6 * scale


def test_thresholds_of_each_token_replace_those_of_the_config(model):
    made, state = model
    request = loss_request("ppo", **CONFIGS["ppo"])
    low = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.28}
    data = [
        Datum(
            each.tokens,
            each.targets,
            {**each.inputs, **{name: np.full_like(each.inputs["logprobs"], value) for name, value in low.items()}},
            True,
        )
        for each in request.data
    ]
    plain, by_token = (
        made.forward_backward(state, each) for each in (request, LossRequest("ppo", {}, data, backward=False))
    )
    gradients(made, state)
    assert plain.loss == pytest.approx(by_token.loss, rel=1e-12)


def test_several_targets_of_a_position_add_up(model):
    made, state = model
    [datum, *_] = loss_request().data
    targets = np.concatenate([datum.targets, (datum.targets + 1) % 259], axis=1)
    weights = np.concatenate([datum.inputs["weights"], 2 * datum.inputs["weights"]], axis=1)
    both = LossRequest("cross_entropy", {}, [Datum(datum.tokens, targets, {"weights": weights}, False)], False)
    result = made.forward_backward(state, both)
    parts = [
        made.forward_backward(
            state,
            LossRequest(
                "cross_entropy",
                {},
                [Datum(datum.tokens, targets[:, [k]], {"weights": weights[:, [k]]}, True)],
                False,
            ),
        )
        for k in range(2)
    ]
    assert result.log_probs[0].shape == (5, 2)
    assert result.loss == pytest.approx(sum(part.loss for part in parts), rel=1e-6)
