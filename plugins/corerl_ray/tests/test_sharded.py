"""Weights in pieces, from the ranks of an actor to the ranks of engines."""

import functools
import multiprocessing
import os
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import SimpleNamespace

import lost_readers
import pytest
import torch
from pieces_world import ApartWorld, Engine, World, assert_loaded, model

from corerl.errors import RunError
from corerl_ray.calls import Member
from corerl_ray.transports import exchange, sharded
from corerl_ray.transports.broadcast import Channel
from corerl_ray.transports.ipc import Ipc
from corerl_ray.transports.sharded import Filling, Sends


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


@pytest.mark.parametrize(
    ("actors", "engines", "ranks", "bucket", "nodes"),
    [
        (2, 1, 2, 500, 1),
        (1, 2, 1, 10_000, 1),
        (3, 2, 2, 300, 1),
        (2, 1, 2, 300, 2),
        (2, 2, 4, 500, 2),
        (1, 1, 4, 300, 4),
    ],
)
def test_engines_apart_have_the_same_bits_and_get_each_element_once(monkeypatch, actors, engines, ranks, bucket, nodes):
    tensors, made = model(), [Engine(ranks) for _ in range(engines)]
    world = ApartWorld(monkeypatch, tensors, actors, made, bucket)
    others = world.spread(nodes)
    plan = world.plan()
    assert all(len(node.host.transport.ends) == ranks // nodes for own in others for node in own)
    assert plan.crossing == plan.values  # nothing stays
    for version in (1, 2, 3):
        assert not any(world.send(version, verify=version == 2))
        assert_loaded(made, tensors)
        for tensor in tensors.values():
            tensor.mul_(1.5)


class Group:
    """In place of a process group: notes what is started; a round is complete when it is let through."""

    def __init__(self, log):
        self.log, self.through = log, 0

    def alltoall_base(self, *_):
        number = sum(what == "start" for what, _ in self.log)
        self.log.append(("start", number))
        return SimpleNamespace(
            is_completed=lambda: self.through > number, wait=lambda: self.log.append(("wait", number))
        )


def stand_in(log, rounds, worker=None):
    """A host with one end of a group of two."""
    own = Sends(tuple(((0, 8), (0, 8), (("w", ((0, 1),), 0),)) for _ in range(rounds)), 32)
    store = SimpleNamespace(check=lambda keys: False)
    group = Group(log)
    channel = Channel(SimpleNamespace(store=store), group, torch.device("cpu"))
    end = exchange.End(Filling(own, torch.device("cpu"), exchange.BUFFERS), channel)
    return SimpleNamespace(transport=exchange.Ends([end]), worker=worker, timeout=60.0, others=()), end, group


def wait_for(condition):
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def test_an_actor_casts_a_round_while_the_one_before_travels(monkeypatch):
    log, filled = [], Filling._fill
    monkeypatch.setattr(Filling, "_prepare", lambda self, pieces: setattr(self, "_rounds", [()] * 5))
    monkeypatch.setattr(Filling, "_fill", lambda *arguments: (log.append(("fill", 0)), filled(*arguments)))

    class Worker:
        def sharded_weights(self, dtype=None):
            return threading.Lock()  # a context

    host, _, group = stand_in(log, 5, Worker())
    group.through = 5
    assert exchange.send(host, False) is None
    kinds = " ".join(what for what, _ in log)
    assert kinds == "fill start fill start wait fill start wait fill start wait fill start wait wait"
    assert [number for what, number in log if what == "wait"] == [0, 1, 2, 3, 4]


def test_a_rollout_worker_requests_a_round_before_the_last_one_is_loaded():
    log = []
    host, end, group = stand_in(log, 4)
    end.shared = SimpleNamespace(data=torch.zeros(64, dtype=torch.uint8))
    host.transport.places = [[(0, 8)] * 4]
    end.free = threading.Semaphore(2)
    receiving = threading.Thread(target=end.receive, args=(60.0,))
    receiving.start()
    wait_for(lambda: len(log) == 2)  # none has arrived
    rounds = exchange.rounds(host)
    group.through = 2
    assert [next(rounds).number, next(rounds).number] == [0, 1]  # the second is announced before the first is done
    assert [number for what, number in log if what == "start"] == [0, 1]  # whose memory the third needs
    exchange.done(host)
    wait_for(lambda: ("start", 2) in log)
    assert ("start", 3) not in log
    exchange.done(host)
    receiving.join(20)
    group.through = 4
    assert [each.number for each in rounds] == [2, 3]
    assert [each for each in log if each[0] == "wait"] == [("wait", number) for number in range(4)]


@pytest.mark.parametrize("verify", [False, True])
def test_a_transfer_has_one_collective_a_round_and_a_rank_waits_for_digests_once(monkeypatch, verify):
    tensors, engine = model(), Engine(2)
    world = ApartWorld(monkeypatch, tensors, 2, [engine], 300)
    plan = world.plan()
    world.send(1, verify=verify)
    assert len(plan.rounds) > 3
    started, waits, starting, lists = [], [], exchange.End.start, torch.Tensor.tolist
    monkeypatch.setattr(exchange.End, "start", lambda *own: (started.append(own[0]), starting(*own))[1])
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: (waits.append(self), lists(self))[1])
    assert not any(world.send(2, verify=verify))
    ends = {id(each): sum(own is each for own in started) for each in started}
    assert [*ends.values()] == [len(plan.rounds)] * 4  # two of the actor, two of the engine
    assert len(waits) == (2 if verify else 0)
    assert_loaded([engine], tensors)


@pytest.fixture(scope="module")
def process():
    """Starts in some seconds; it ends at once, without the ends of gloo's groups, which wait."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as made:
        yield made
        with pytest.raises(BrokenProcessPool):
            made.submit(os._exit, 0).result(60)


@pytest.mark.parametrize(
    "loss",
    [
        lost_readers.one_ends,
        lost_readers.one_falls_silent,
        lost_readers.a_node_falls_silent,
        lost_readers.a_node_falls_silent_before,
    ],
)
def test_a_lost_rollout_worker_or_node_ends_the_transfer_and_the_others_go_on_in_another_group(process, loss):
    process.submit(loss).result(120)


def test_a_changed_byte_on_another_node_is_found_and_the_next_update_is_whole(monkeypatch):
    tensors, engine = model(), Engine(2)
    world = ApartWorld(monkeypatch, tensors, 2, [engine], 300)
    world.spread(2)
    plan = world.plan()
    first = min((one for one in plan.rounds[0].parts if one.receiver == 1), key=lambda one: one.received_at)
    engine.damaged, engine.damage = 1, first.received_at + 16
    with pytest.raises(RunError, match=f"weight '{first.name}' arrived changed"):
        world.send(1, verify=True)
    engine.damage = None
    assert not any(world.send(2, verify=True))
    assert_loaded([engine], tensors)


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


@pytest.mark.parametrize("transport", [exchange.Exchange, functools.partial(Ipc, in_pieces=True)])
def test_the_plan_is_made_again_if_engines_started_again_in_the_same_workers(monkeypatch, transport):
    made = []
    for module in (exchange, sharded):
        monkeypatch.setattr(module, "make", lambda *arguments: made.append(arguments[2]) or True)
    monkeypatch.setattr(exchange, "settle", lambda *_: None)
    apply = SimpleNamespace(remote=lambda *_: None)
    reader = Member("rollout", 0, 1, SimpleNamespace(apply=apply), SimpleNamespace(address="127.0.0.1"))
    waiter = SimpleNamespace(wait=lambda calls, *_: [0 for _ in calls])
    actor = SimpleNamespace(members=(reader,), apply=lambda *_: [], timeout=60.0, waiter=waiter)
    rollout = SimpleNamespace(starts=0, has=lambda _: True)
    own = transport(actor, rollout, 100)
    for starts, expected in ((0, 1), (0, 1), (1, 2), (1, 2)):
        rollout.starts = starts
        own.send((reader,), 1, verify=False)
        assert len(made) == expected


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
