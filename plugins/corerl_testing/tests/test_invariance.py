"""The gradient of every installed policy loss, however its mini-batch is cut."""

from typing import Any

import gloo_rank
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corerl.config import typed
from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl.plugins import load_plugins
from corerl.registry import Owner, Registries, Selected
from corerl_testing import CheckFailed
from corerl_testing.entries import required_options
from corerl_testing.invariance import AGGREGATIONS, TinyPolicy, expect_invariant, setting
from corerl_testing.ranks import World

LOSSES = [
    entry.name
    for entry in load_plugins().registries.policy_losses
    if not required_options(entry) and entry.facts.of_logits is None
]


def selected(name: str) -> Selected[Any]:
    entry = load_plugins().registries.policy_losses.get(name)
    return Selected(entry, None if entry.options is None else typed.build(entry.load_options(), {}))


def of(loss: Any) -> Selected[Any]:
    return Selected(Registries().policy_losses.entry("mine", loss, Owner("acme")))


def surrogate(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(-inputs.advantages * (inputs.log_probs - inputs.old_log_probs).clamp(-20, 20).exp())


def micro_batch_mean(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(surrogate(inputs).terms / inputs.response_mask.sum().clamp(min=1))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@settings(max_examples=2, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), rows=st.integers(3, 9), full=st.booleans())
def test_the_gradient_of_an_installed_loss_is_invariant(
    name: str, aggregation: str, seed: int, rows: int, full: bool
) -> None:
    case = setting(selected(name), aggregation, full=full, seed=seed, rows=rows)
    if float(case.gradient([torch.arange(rows)]).abs().max()) > 1e-9:  # not every token may be clipped
        expect_invariant(case, f"with {aggregation}")


def test_the_gradient_is_that_of_the_formula() -> None:
    """seq-mean-token-mean by hand: the mean over rows with a token of the mean over their tokens of -A rho."""
    case = setting(of(surrogate), "seq-mean-token-mean")
    batch = case.batch
    log_probs = case.policy(batch).log_probs
    assert log_probs is not None and batch.old_log_probs is not None and batch.advantages is not None
    losses = []
    for row in range(len(batch)):
        tokens = [column for column in range(log_probs.shape[1]) if batch.response_mask[row, column]]
        terms = [
            -batch.advantages[row, column] * (log_probs[row, column] - batch.old_log_probs[row, column]).exp()
            for column in tokens
        ]
        if terms:
            losses.append(sum(terms) / len(terms))
    loss = torch.as_tensor(sum(losses)) / len(losses)
    want = torch.cat([each.flatten() for each in torch.autograd.grad(loss, case.policy.weights)])
    assert torch.allclose(case.gradient([torch.arange(len(batch))]), want, rtol=1e-12, atol=1e-15)
    assert len(losses) == len(batch) - 1


def test_the_packed_layout_gives_the_same_log_probs_as_the_padded_one() -> None:
    batch = setting(of(surrogate)).batch
    policy = TinyPolicy(torch.float64)
    for packed, padded in zip(policy(batch, "packed"), policy(batch), strict=True):
        assert (packed is None) == (padded is None)
        if packed is not None and padded is not None:
            assert torch.equal(packed, padded)
            assert packed.any()


def test_the_message_says_which_cut_and_how_much() -> None:
    message = (
        r"the gradient of the mini-batch changes by [0-9.e+-]+ \(relative\) when it is cut into 2 micro-batches, with "
        r"token-mean: terms that depend on the rows beside them, such as a loss that averages over the micro-batch, "
        r"are the usual cause"
    )
    with pytest.raises(CheckFailed, match=message):
        expect_invariant(setting(of(micro_batch_mean)), "with token-mean")


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_sum_their_gradients_have_that_of_the_whole(size: int) -> None:
    names = [*LOSSES, "micro_batch_mean"]
    world = World(size, gloo_rank.run)
    try:
        gradients, *_ = world.run(names=names)
    finally:
        world.close()
    for name in names:
        case = setting(of(micro_batch_mean) if name == "micro_batch_mean" else selected(name), full=True)
        whole = case.gradient([torch.arange(len(case.batch))])
        error = float((gradients[name] - whole).abs().max() / whole.abs().max())
        assert (error > 0.1) if name == "micro_batch_mean" else (error <= 1e-9), f"{name}: {error}"
