"""Strategy ``megatron`` serves clients as ``torch`` does: losses, gradients, files, clients in turn."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import tinker_ranks
import torch
from tinker_ranks import ADDRESS, STEP, made
from tinker_toys import KEYS, Client, datum, loss_request, running

from corerl.errors import ConfigError
from corerl_testing.ranks import World
from corerl_testing.tiny_model import tiny_model
from corerl_tinker.training.checkpoints import About, Checkpoints
from corerl_tinker.training.losses import LOSSES
from corerl_tinker.training.states import Adapter

pytest.importorskip("megatron.core")
pytestmark = pytest.mark.xdist_group("megatron of tinker")  # its layout is that of a process

ADAPTER = Adapter(4, 8, 5)
CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.28}
CONFIGS = {"ppo": CLIP, "cispo": CLIP, "dro": {"beta": 0.3}}
SINGLE, MEGATRON = {"single": True}, {"layout": {}}

LAYOUTS = [  # of those that megatron-core runs on the CPU
    (2, {"tensor_model_parallel_size": 2}),
    (2, {"context_parallel_size": 2}),
    (2, {}),
    (4, {"tensor_model_parallel_size": 2}),
]
every_layout = pytest.mark.skipif(
    os.environ.get("CORERL_EVERY_LAYOUT") != "1", reason="one more strategy of clients: set CORERL_EVERY_LAYOUT=1"
)


def gradient(trainer):
    """Of each parameter, by name; it is dropped from the model."""
    own = trainer.slot.weights.own.values()
    taken = [torch.zeros_like(each) if each.grad is None else each.grad.clone() for each in own]
    for each in own:
        each.grad = None
    return {name: each.clone() for name, each in trainer.slot.gather(taken)}


@pytest.fixture(scope="module", params=[4, 0], ids=["adapters", "all weights"])
def trained(request, tmp_path_factory):
    """(rank, about, folder): files of a client that ``torch`` has trained for a step."""
    rank, folder, trainer = request.param, tmp_path_factory.mktemp("trained"), made({"rank": request.param, **SINGLE})
    about, state = About("m", "", vars(ADAPTER) if rank else None, 0.0), trainer.new_state(ADAPTER)
    trainer.forward_backward(state, loss_request(seed=30))
    trainer.optim_step(state, replace(STEP, lr=2e-3))
    trainer.save(Checkpoints(folder), ADDRESS, about, state, optimizer=True, overwrite=False)
    return rank, about, folder


def near(trainer, state, loss, seed):
    """A request whose sampler is near the model: ratios around 1."""
    request = loss_request(loss, seed=seed, **CONFIGS.get(loss, {}))
    if "logprobs" not in request.data[0].inputs:
        return request
    forward = trainer.forward_backward(state, replace(request, backward=False))
    draw, data = np.random.default_rng(seed), []
    for each, found in zip(request.data, forward.log_probs, strict=True):
        old = (found + 0.2 * draw.normal(size=found.shape)).astype(np.float32)[:, None]
        data.append(replace(each, inputs={**each.inputs, "logprobs": old}))
    return replace(request, data=data)


def test_losses_and_gradients_are_those_of_torch_and_so_is_the_next_step(trained, tmp_path):
    rank, about, folder = trained
    trainers = [made({"rank": rank, **job}) for job in (SINGLE, MEGATRON)]
    store = Checkpoints(folder)
    one, other = states = [each.load(store, ADDRESS, about, optimizer=True) for each in trainers]
    assert all(torch.equal(a, b) for a, b in zip(*map(weights, trainers, states), strict=True))
    for seed, loss in enumerate(sorted(LOSSES)):
        request = near(trainers[0], one, loss, seed)
        true, found = (each.forward_backward(state, request) for each, state in zip(trainers, states, strict=True))
        tokens = sum(len(each) for each in true.log_probs)
        assert found.loss == pytest.approx(true.loss, rel=1e-6, abs=1e-6 * tokens)  # a sum of both signs
        for a, b in zip(found.log_probs, true.log_probs, strict=True):
            assert a == pytest.approx(b, rel=1e-6)
        gradients = [gradient(each) for each in trainers]
        assert gradients[0].keys() == gradients[1].keys()
        whole = torch.cat([each.flatten() for each in gradients[0].values()]).norm()
        differences = [(gradients[1][name] - each).flatten() for name, each in gradients[0].items()]
        assert torch.cat(differences).norm() <= 2e-6 * whole, loss  # float32: sums of other orders
    norms = []
    for each, state in zip(trainers, states, strict=True):
        each.forward_backward(state, loss_request(seed=50))
        norms.append(each.optim_step(state, STEP))
    assert norms[1] == pytest.approx(norms[0], rel=1e-6)
    for a, b in zip(weights(trainers[0], one), weights(trainers[1], other), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-6)
    store = Checkpoints(tmp_path)  # files of megatron are read by torch, and by another server, bit for bit
    trainers[1].save(store, ADDRESS, about, other, optimizer=True, overwrite=False)
    steps = []
    for each in (trainers[0], made({"rank": rank, **MEGATRON})):
        loaded = each.load(store, ADDRESS, about, optimizer=True)
        each.forward_backward(loaded, loss_request(seed=51))
        each.optim_step(loaded, STEP)
        steps.append(weights(each, loaded))
    trainers[1].forward_backward(other, loss_request(seed=51))
    trainers[1].optim_step(other, STEP)
    assert all(torch.equal(a, b) for a, b in zip(steps[1], weights(trainers[1], other), strict=True))
    for a, b in zip(*steps, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-6)


def weights(trainer, state):
    """The trained weights of a state, in the order of their names."""
    trainer.slot.hold(state)
    return [each.clone() for _, each in sorted(dict(trainer.slot.gather(trainer.slot.present().weights)).items())]


@every_layout
@pytest.mark.parametrize("rank", [4, 0], ids=["adapters", "all weights"])
def test_two_clients_in_turn_get_what_each_gets_alone(rank):
    shared = tinker_ranks.together({"rank": rank, **MEGATRON})
    for number in range(2):
        seen, sent = tinker_ranks.alone({"rank": rank, "client": number, **MEGATRON})
        assert shared[number][0] == seen
        assert all(torch.equal(each, sent[name]) for name, each in shared[number][1].items())


def test_what_single_steps_cannot_do_is_refused():
    from corerl_megatron.stepping import SharedWeights

    strategy = made({"rank": 0, **MEGATRON}).strategy
    strategy.optimizer = None
    with pytest.raises(ConfigError, match=r"megatron takes single steps with adapters, or on the CPU"):
        SharedWeights(strategy)
    with pytest.raises(ConfigError, match=r"actor\.strategy\.grad_offload: moves what single steps"):
        made({"layout": {"grad_offload": True}})


@every_layout
def test_a_server_trains_and_samples_by_megatron(tmp_path):
    found = []
    for number, strategy in enumerate(("torch", "megatron")):
        values = {"actor": {"device": "cpu", "strategy": strategy}}
        with running(tmp_path / str(number), values=values) as server:
            client = Client(server.url, KEYS[0])
            model = client.create(server.model)
            losses = []
            for _ in range(2):
                losses.append(client.loss(client.backward(model, datum(), datum(range(60, 90)))))
                client.result(client.step(model))
            found.append(losses)
            client.finish()
    assert found[1] == pytest.approx(found[0], rel=1e-6)


@every_layout
@pytest.mark.parametrize(("size", "layout"), LAYOUTS)
def test_clients_get_of_ranks_what_one_device_gives_and_alone_what_they_get_in_turn(size, layout, tmp_path):
    shutil.copytree(tiny_model(), tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 2}))
    of_model = {"model": str(tmp_path / "model")}
    world = World(size, tinker_ranks.run)
    try:
        for rank in (4, 0):
            shared = world.run(kind="together", rank=rank, layout=layout, **of_model)
            for number in range(2):
                true, sent = tinker_ranks.alone({**SINGLE, **of_model, "rank": rank, "client": number})
                found = world.run(kind="alone", rank=rank, client=number, layout=layout, **of_model)
                for result, both in zip(found, shared, strict=True):
                    assert "error" not in result and "error" not in both, (result, both)
                    assert result[0] == pytest.approx(true, rel=1e-5, abs=2e-5)
                    for name, each in sent.items():
                        torch.testing.assert_close(result[1][name], each, rtol=0, atol=1e-5)
                    assert both[number][0] == result[0]
                    assert all(torch.equal(each, result[1][name]) for name, each in both[number][1].items())
            folder = str(tmp_path / str(rank))
            job = {"kind": "continued", "rank": rank, "folder": folder, **of_model}
            results = world.run(**job, layout=layout)
            assert all("error" not in result for result in results), results
            true = tinker_ranks.run({**job, "load": True, **SINGLE})
            for name, each in true.items():
                torch.testing.assert_close(results[0][name], each, rtol=0, atol=1e-5)
            shutil.rmtree(folder)
    finally:
        world.close()
