"""Weights in pieces, from the ranks of an actor to the ranks of engines."""

import time

import pytest
import torch
from pieces_world import ApartWorld, Engine, World, expected, model

from corerl.errors import RunError


def assert_loaded(engines, tensors, dtype=torch.float32):
    rounded = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    for engine in engines:
        for rank, parameters in zip(engine.ranks, expected(rounded, len(engine.ranks), dtype), strict=True):
            for name, tensor in parameters.items():
                assert torch.equal(rank.parameters[name], tensor), name


@pytest.mark.parametrize(
    ("actors", "engines", "ranks", "in_place", "bucket"),
    [(2, 1, 2, True, 10_000), (2, 1, 2, False, 400), (1, 1, 2, True, 400), (4, 2, 2, True, 700), (2, 2, 1, False, 1)],
)
def test_an_engine_has_the_bits_of_one_that_loaded_whole_weights(monkeypatch, actors, engines, ranks, in_place, bucket):
    tensors = model()
    made = [Engine(ranks, in_place) for _ in range(engines)]
    world = World(monkeypatch, tensors, actors, made, bucket)
    plan = world.plan()
    assert len(plan.rounds) > 2 or bucket == 10_000
    for version in (1, 2, 3):
        world.send(version, verify=version == 2)
        assert_loaded(made, tensors)
        for tensor in tensors.values():
            tensor.mul_(1.5)
    assert [engine.versions for engine in made] == [[1, 2, 3]] * engines


def test_weights_that_are_copied_as_they_are_pass_by_the_loader(monkeypatch):
    tensors, engine = model(), Engine(2)
    world = World(monkeypatch, tensors, 2, [engine])
    world.plan()
    passed = set()
    for rank in engine.ranks:
        rank.load_one = lambda name, tensor, load=rank.load_one: (passed.add(name), load(name, tensor))[1]
    world.send(1)
    assert passed == {f"expert.{number}" for number in range(4)}  # which the loader turns
    assert_loaded([engine], tensors)


@pytest.mark.parametrize(("actors", "engines", "ranks", "bucket"), [(2, 1, 2, 500), (1, 2, 1, 10_000), (3, 2, 2, 300)])
def test_engines_apart_have_the_same_bits_and_get_each_element_once(monkeypatch, actors, engines, ranks, bucket):
    tensors, made = model(), [Engine(ranks) for _ in range(engines)]
    world = ApartWorld(monkeypatch, tensors, actors, made, bucket)
    plan = world.plan()
    assert plan.crossing == plan.values  # nothing stays
    for version in (1, 2, 3):
        assert not any(world.send(version, verify=version == 2))
        assert_loaded(made, tensors)
        for tensor in tensors.values():
            tensor.mul_(1.5)


def test_a_lost_rollout_worker_breaks_the_group_and_the_others_go_on_in_another(monkeypatch):
    tensors, made = model(), [Engine(1), Engine(1)]
    world = ApartWorld(monkeypatch, tensors, 2, made, 300)
    world.plan()
    assert not any(world.send(1))
    assert all(world.send(2, lost=(1,)))  # broken, and no error of missing weights
    assert made[0].versions == [1]
    world.readers.members = world.readers.members[:1]
    world.readers.members[0].world_size = 1
    world.plan()
    assert not any(world.send(3))
    assert_loaded(made[:1], tensors)


def test_the_wait_for_a_rollout_worker_ends_when_the_others_leave_though_its_connections_stay_open(monkeypatch):
    world = ApartWorld(monkeypatch, model(), 2, [Engine(1), Engine(1)], 300)
    world.plan()
    assert not any(world.send(1))
    began = time.monotonic()
    assert all(world.send(2, lost=(1,), how=lambda host: None))
    assert time.monotonic() - began < 30  # the deadline of the hosts is 60 s


def test_an_engine_apart_that_fails_does_not_hold_up_the_others(monkeypatch):
    tensors, made = model(), [Engine(1), Engine(1)]
    world = ApartWorld(monkeypatch, tensors, 2, made, 300)
    world.plan()
    made[0].fails_at = 1
    with pytest.raises(RunError, match="the engine fails"):
        world.send(1)
    assert made[1].versions == [1]
    made[0].fails_at = None
    assert not any(world.send(2))
    assert_loaded(made, tensors)


def test_values_are_cast_before_they_are_sent(monkeypatch):
    tensors, engine = model(), Engine(2, dtype=torch.bfloat16)
    world = World(monkeypatch, tensors, 2, [engine], dtype=torch.bfloat16)
    plan = world.plan()
    world.send(1, verify=True)
    assert_loaded([engine], tensors, torch.bfloat16)
    whole = 2 * sum(tensor.numel() for tensor in tensors.values())
    both = 2 * sum(tensors[name].numel() for name in ("norm", "bias", "scale", "k", "v"))  # all ranks have them
    assert plan.values == whole + both
    assert plan.crossing < 0.6 * whole
    assert world.exchange.bytes <= plan.crossing + 32 * sum(len(each.parts) for each in plan.rounds)


def test_a_changed_byte_is_found_and_its_weight_named(monkeypatch):
    engine = Engine(2)
    world = World(monkeypatch, model(), 2, [engine])
    plan = world.plan()
    world.send(1, verify=True)
    first = min((one for one in plan.rounds[0].parts if one.receiver == 0), key=lambda one: one.received_at)
    engine.damage = first.received_at + 16
    with pytest.raises(RunError, match=f"weight '{first.name}' arrived changed"):
        world.send(2, verify=True)
    engine.damage = first.received_at  # of the digest itself
    with pytest.raises(RunError, match=f"weight '{first.name}' arrived changed"):
        world.send(3, verify=True)
    engine.damage = None
    world.send(4, verify=True)
    assert engine.versions == [1, 4]


def test_an_engine_that_fails_does_not_hold_up_the_others(monkeypatch):
    engines = [Engine(1), Engine(1)]
    tensors = model()
    world = World(monkeypatch, tensors, 2, engines, 300)
    assert len(world.plan().rounds) > 4
    engines[0].fails_at = 1
    with pytest.raises(RunError, match="the engine fails"):
        world.send(1)
    assert engines[1].versions == [1]
    assert_loaded(engines[1:], tensors)
    engines[0].fails_at = None
    world.send(2)
    assert_loaded(engines, tensors)


def test_whole_weights_are_sent_if_an_actor_has_no_pieces(monkeypatch):
    world = World(monkeypatch, model(), 2, [Engine(2)])
    world.workers[1].divided = False
    assert world.plan() is None


def test_a_rank_whose_parts_have_changed_says_so(monkeypatch):
    tensors = model()
    world = World(monkeypatch, tensors, 1, [Engine(2)])
    world.plan()
    lost = tensors.pop("down")
    with pytest.raises(RunError, match="no longer holds its part of the weight 'down'"):
        world.actors.pool.submit(world.send_one, world_host(world), False).result(60)
    tensors["down"] = lost
    world.plan()
    world.send(1)
    del tensors["down"]
    with pytest.raises(RunError, match="this rank's parts of the weight 'down' are not those of the plan"):
        world.actors.pool.submit(world.send_one, world_host(world), False).result(60)


def world_host(world):
    return world.actors.members[0].host.apply.remote(lambda host: host).result(60)
