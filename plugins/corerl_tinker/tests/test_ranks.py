"""Two ranks of ``fsdp`` serve clients as one device does."""

import os

import pytest
import tinker_ranks
import torch
from tinker_toys import KEYS, Client, Refused, datum, running

from corerl_testing.ranks import World

pytestmark = pytest.mark.skipif(
    os.environ.get("CORERL_EVERY_COMBINATION") != "1", reason="starts ranks: set CORERL_EVERY_COMBINATION=1"
)


@pytest.fixture(scope="module")
def world():
    started = World(2, tinker_ranks.run)
    yield started
    started.close()


def close(one, other, **tolerance):
    torch.testing.assert_close(one, other, **{"rtol": 0, "atol": 1e-5, **tolerance})


@pytest.mark.parametrize("rank", [4, 0], ids=["adapters", "all weights"])
def test_a_client_gets_of_two_ranks_what_one_device_gives_and_alone_what_it_gets_in_turn(world, rank):
    shared = world.run(kind="together", rank=rank)
    for number in range(2):
        (true, weights) = tinker_ranks.alone({"single": True, "rank": rank, "client": number})
        for result, all_of in zip(world.run(kind="alone", rank=rank, client=number), shared, strict=True):
            assert "error" not in result and "error" not in all_of, (result, all_of)
            seen, sent = result
            close(torch.tensor(seen), torch.tensor(true), rtol=1e-5, atol=2e-5)
            close({name: sent[name] for name in weights}, weights)
            assert all_of[number][0] == seen
            assert all(torch.equal(each, sent[name]) for name, each in all_of[number][1].items())


@pytest.mark.parametrize("rank", [4, 0], ids=["adapters", "all weights"])
def test_files_of_two_ranks_are_continued_by_one_device(world, tmp_path, rank):
    folder = str(tmp_path)
    results = world.run(kind="continued", rank=rank, folder=folder)
    true = tinker_ranks.run({"kind": "continued", "rank": rank, "folder": folder, "load": True, "single": True})
    for result in results:
        assert "error" not in result, result
        close({name: result[name] for name in true}, true)


def test_two_ranks_send_the_adapters_of_one_device(world):
    for number in range(2):
        true = tinker_ranks.alone({"single": True, "adapters": True, "client": number})[1]
        assert all(".lora_" in name for name in true)
        for _, sent in world.run(kind="alone", adapters=True, client=number):
            close(sent, true)


def test_a_server_on_ray_gives_what_a_server_in_one_process_gives(tmp_path):
    pytest.importorskip("ray")
    on_ray = {"actor": {"device": "cpu", "strategy": "fsdp"}, "runtime": {"name": "ray", "options": {"workers": 2}}}
    found = []
    for number, values in enumerate(({}, on_ray)):
        with running(tmp_path / str(number), values=values) as server:
            client = Client(server.url, KEYS[0])
            model = client.create(server.model)
            losses = [client.loss(client.backward(model, datum(), datum(range(60, 90)))) for _ in range(2)]
            norm = client.result(client.step(model))["metrics"]["grad_norm:mean"]
            with pytest.raises(Refused, match="there is no gradient"):
                client.result(client.step(model))
            found.append([*losses, norm, client.loss(client.backward(model, datum()))])
            client.finish()
    assert found[1] == pytest.approx(found[0], rel=1e-5)
