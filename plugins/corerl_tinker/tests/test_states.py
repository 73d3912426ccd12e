"""Clients between each other's requests get what each would get alone, bit for bit."""

import itertools

import pytest
import torch
from tinker_toys import loss_request, trainer

from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_tinker.errors import UserError
from corerl_tinker.training.states import Adapter, cut
from corerl_torch.stepping import AdamStep

STEP = AdamStep(1e-2, (0.9, 0.95), 1e-12, weight_decay=0.01, max_norm=1.0)
CLIENTS = (Adapter(2, 32, 5), Adapter(4, 32, 6, train_mlp=False))


def client(made, number):
    """Every number that a client sees, and at last its weights; two gradients add up to each step."""
    state = made.new_state(CLIENTS[number])
    for k in range(2):
        for part in (0, 5):
            result = made.forward_backward(state, loss_request(seed=10 * number + k + part))
            yield result.loss, [each.tolist() for each in result.log_probs]
        yield made.optim_step(state, STEP)
    yield made.snapshot(state).weights


@pytest.mark.parametrize("strategy", [SingleDeviceStrategy, FsdpStrategy])
@pytest.mark.parametrize("rank", [4, 0], ids=["adapters", "all weights"])
def test_two_clients_in_turn_get_what_each_gets_alone(strategy, rank):
    alone = []
    for number in range(2):
        alone.append(list(client(trainer(rank, strategy), number)))
    shared = trainer(rank, strategy)
    pairs = list(itertools.zip_longest(client(shared, 0), client(shared, 1)))
    for number in range(2):
        found = [pair[number] for pair in pairs]
        assert found[:-1] == alone[number][:-1]
        assert all(torch.equal(a, b) for a, b in zip(found[-1], alone[number][-1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(alone[0][-1], alone[1][-1], strict=True))


def test_a_smaller_rank_is_that_of_a_server_of_this_rank():
    small, large = trainer(2), trainer(4)
    states = [made.new_state(CLIENTS[0]) for made in (small, large)]
    for made, state in zip((small, large), states, strict=True):
        made.forward_backward(state, loss_request())
        made.optim_step(state, STEP)
    pairs = zip((small, large), states, strict=True)
    one, other = (made.forward_backward(state, loss_request(seed=1)) for made, state in pairs)
    assert one.loss == pytest.approx(other.loss, abs=1e-4)
    padded = large.snapshot(states[1]).weights
    for name, whole in zip(large.slot.weights.own, padded, strict=True):
        cut(CLIENTS[0], name, whole).zero_()
    assert max(float(whole.abs().max()) for whole in padded) == 0
    with pytest.raises(UserError, match="rank 5 is too large"):
        large.new_state(Adapter(5, 32))


def test_layers_that_a_client_does_not_train_stay_as_they_are():
    made = trainer()
    state = made.new_state(CLIENTS[1])
    made.forward_backward(state, loss_request())
    made.optim_step(state, STEP)
    moved = dict(zip(made.slot.weights.own, made.snapshot(state).weights, strict=True))
    assert all(float(each.abs().sum()) == 0 for name, each in moved.items() if ".mlp." in name)
    assert all(float(each.abs().sum()) > 0 for name, each in moved.items() if ".self_attn." in name)


def test_a_step_is_that_of_torchs_adamw():
    made = trainer(0)
    state = made.new_state(CLIENTS[0])
    made.forward_backward(state, loss_request())
    copies = [parameter.detach().clone().requires_grad_() for _, parameter in made.slot.weights.own.items()]
    for copy, (_, parameter) in zip(copies, made.slot.weights.own.items(), strict=True):
        copy.grad = parameter.grad.clone()
    norm = made.optim_step(state, STEP)
    assert float(torch.nn.utils.clip_grad_norm_(copies, 1.0)) == pytest.approx(norm)
    torch.optim.AdamW(copies, lr=1e-2, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.01).step()
    for copy, (name, parameter) in zip(copies, made.slot.weights.own.items(), strict=True):
        torch.testing.assert_close(parameter, copy, rtol=1e-5, atol=1e-6, msg=name)


def test_a_gradient_that_is_not_finite_changes_nothing():
    made = trainer()
    state = made.new_state(CLIENTS[0])
    made.forward_backward(state, loss_request())
    before = made.snapshot(state).weights
    list(made.slot.weights.own.values())[1].grad.fill_(float("nan"))
    with pytest.raises(UserError, match="gradient norm nan: the optimizer step was not taken"):
        made.optim_step(state, STEP)
    assert all(torch.equal(a, b) for a, b in zip(before, made.snapshot(state).weights, strict=True))
    with pytest.raises(UserError, match="no gradient"):
        made.optim_step(state, STEP)


def test_a_loss_that_is_not_finite_drops_the_gradients():
    made = trainer()
    state = made.new_state(CLIENTS[0])
    made.forward_backward(state, loss_request())
    request = loss_request(seed=1)
    request.data[0].inputs["weights"][0] = 3e38
    request.data[0].inputs["weights"][1] = 3e38
    with pytest.raises(UserError, match="all accumulated gradients of this model were dropped"):
        made.forward_backward(state, request)
    assert not made.slot.has_gradient()
