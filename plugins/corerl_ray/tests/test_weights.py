"""Weights from two actor workers to two rollout workers, by every transport, also while requests run."""

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from ray_toys import ENGINE, ROWS, TOY, Engine, Generation, Toy, corrupt, each, request, until

from corerl.errors import ConfigError, RunError
from corerl_ray.calls import Call
from corerl_ray.options import RayOptions
from corerl_ray.pools import Places
from corerl_ray.transports.broadcast import Broadcast, BrokenError, Channel
from corerl_ray.transports.choice import make, name_of
from corerl_ray.transports.ipc import Ipc
from corerl_ray.transports.object_store import ObjectStore

pytestmark = pytest.mark.xdist_group("ray")  # whose cluster is started once


class Endless:
    """An operation of gloo whose peer never takes part."""

    def is_completed(self):
        return False


def test_a_group_that_is_left_ends_an_operation_that_waits():
    aborted = threading.Event()
    channel = Channel(None, SimpleNamespace(abort=aborted.set), torch.device("cpu"))
    leaver = threading.Timer(0.05, channel.leave)
    leaver.start()
    with pytest.raises(BrokenError):
        channel.wait(Endless())
    leaver.join()
    assert aborted.is_set()


def sent(added):
    return {f"w{index}": ("torch.bfloat16", [[float(index) + added] * 3] * rows) for index, rows in enumerate(ROWS)}


@pytest.mark.parametrize("bucket_bytes", [16, 64, 2**20])
@pytest.mark.parametrize("transport", [ObjectStore, Ipc, Broadcast])
def test_weights_arrive_at_every_replica_bit_for_bit_and_again_after_training(groups, transport, bucket_bytes):
    actor, rollout = groups
    carrier = transport(actor, rollout, bucket_bytes)
    for version, verify in ((3, False), (4, True)):
        carrier.send(rollout.members, version, verify=verify)
        expected = sent(actor.added_so_far())
        assert each(rollout, "received") == [(version, expected)] * 2
        actor.train()


@pytest.mark.parametrize(("transport", "most"), [(ObjectStore, 3), (Ipc, 3), (Broadcast, 6)])
def test_a_rollout_worker_that_does_not_read_stops_the_actor_after_two_buckets(groups, transport, most):
    """A tensor is a bucket here; one is read ahead, and a broadcast has two at either end."""
    actor, rollout = groups
    carrier = transport(actor, rollout, 16)
    carrier.send(rollout.members, 4, verify=False)
    rollout.read_on(False)
    sending = threading.Thread(target=lambda: carrier.send(rollout.members, 5, verify=False))
    sending.start()
    time.sleep(1.0)
    read = int(Path(os.environ["CORERL_READ"]).read_text())
    rollout.read_on(True)
    sending.join()
    assert 1 < read <= most
    assert each(rollout, "received") == [(5, sent(actor.added_so_far()))] * 2


def test_weights_and_abort_reach_a_rollout_worker_that_generates(groups):
    actor, rollout = groups
    each(rollout, "seen")
    generating = Generation(rollout, [request("a", seconds=60.0), request("b", seconds=60.0)])
    until(lambda: [running for *_, running in each(rollout, "seen")] == [1, 1])
    ObjectStore(actor, rollout, 64).send(rollout.members, 9, verify=True)
    assert [version for version, _ in each(rollout, "received")] == [9, 9]
    assert [running for *_, running in each(rollout, "seen")] == [1, 1]
    rollout.abort()
    assert generating.result() == [["a"], ["b"]]


def test_a_tensor_that_changes_on_its_way_to_a_pool_of_its_own_is_named(start):
    runtime = start(rollout_workers=1)
    actor, rollout = runtime.spawn(TOY, Toy), runtime.spawn(ENGINE, Engine)
    runtime.options.weights_transport = "broadcast"
    runtime.send_weights(actor, rollout, 1, verify=True)
    assert each(rollout, "received") == [(1, sent(0))]
    [member] = rollout.members
    runtime.waiter.wait([Call(member, member.host.apply.remote(corrupt))], time.monotonic() + 10, "corrupt")
    runtime.send_weights(actor, rollout, 2)
    began = time.monotonic()
    with pytest.raises(RunError, match=r"^rollout worker: the weight 'w1' changed on its way"):
        runtime.send_weights(actor, rollout, 3, verify=True)
    runtime.close()
    assert time.monotonic() - began < 60


HOST, ONE, OTHER = (Places(None, ("node",) * 2, gpus, "key") for gpus in (0, 2, 2))


@pytest.mark.parametrize(
    ("asked", "places", "name"),
    [
        ("auto", (HOST, HOST), "object_store"),
        ("auto", (HOST, ONE), "object_store"),
        ("auto", (ONE, ONE), "ipc"),
        ("auto", (ONE, OTHER), "broadcast"),
        ("broadcast", (HOST, HOST), "broadcast"),
        ("exchange", (ONE, OTHER), "exchange"),
        ("ipc", (HOST, HOST), "ipc"),
        ("object_store", (ONE, ONE), "object_store"),
    ],
)
def test_the_transport_suits_the_places(asked, places, name):
    assert name_of(RayOptions(weights_transport=asked), *places) == name


@pytest.mark.parametrize(
    ("asked", "places"),
    [("ipc", (ONE, OTHER)), ("sharded", (ONE, OTHER)), ("broadcast", (ONE, ONE)), ("exchange", (ONE, ONE))],
)
def test_a_transport_that_the_places_forbid_is_refused(asked, places):
    with pytest.raises(ConfigError, match=f"^runtime.options.weights_transport: {asked} .* (own|ipc)$"):
        name_of(RayOptions(weights_transport=asked), *places)


class Elsewhere:
    """A transport of another distribution."""

    def __init__(self, *made):
        self.made = made


def test_a_transport_of_another_distribution_is_named_by_its_module():
    reference = f"{__name__}:Elsewhere"
    options = RayOptions(weights_transport=reference)
    assert name_of(options, ONE, OTHER) == reference
    assert make(reference, options, "actor", "rollout").made == (options, "actor", "rollout")
    with pytest.raises(
        ConfigError, match="is 'rdma': one of auto, object_store, broadcast, exchange, ipc, sharded, or module:function"
    ):
        name_of(RayOptions(weights_transport="rdma"), ONE, OTHER)
    with pytest.raises(ConfigError, match=f"is {__name__}:Missing, which cannot be imported"):
        make(f"{__name__}:Missing", options, "actor", "rollout")
