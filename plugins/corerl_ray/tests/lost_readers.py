"""Transfers whose group breaks, for a process of their own: gloo's loop may use a core until the process ends."""

import time

import pytest
from pieces_world import ApartWorld, Engine, OtherNode, assert_loaded, model

from corerl.errors import EngineDeadError
from corerl_ray.transports import exchange


def of_two(patch):
    """A world that has sent once to two engines."""
    tensors, made = model(), [Engine(1), Engine(1)]
    world = ApartWorld(patch, tensors, 2, made, 300)
    world.plan()
    assert not any(world.send(1))
    return tensors, made, world


def one_ends():
    """It breaks the group, and the others go on in another."""
    with pytest.MonkeyPatch.context() as patch:
        tensors, made, world = of_two(patch)
        assert all(world.send(2, lost=(1,)))  # broken, and no error of missing weights
        assert made[0].versions == [1]
        world.readers.members = world.readers.members[:1]
        world.readers.members[0].world_size = 1
        world.plan()
        assert not any(world.send(3))
        assert_loaded(made[:1], tensors)


def one_falls_silent():
    """The wait for it ends when the others leave, though its connections stay open."""
    with pytest.MonkeyPatch.context() as patch:
        *_, world = of_two(patch)
        began = time.monotonic()
        assert all(world.send(2, lost=(1,), how=lambda host: None))
        assert time.monotonic() - began < 30  # the deadline of the hosts is 60 s


def a_node_falls_silent(when=exchange.arrived, calls=2):
    """Another node of an engine: the transfer ends, the engine too, and the other one goes on in another group."""
    with pytest.MonkeyPatch.context() as patch:
        tensors, made = model(), [Engine(2), Engine(2)]
        world = ApartWorld(patch, tensors, 2, made, 300)
        [[node], _] = world.spread(2)
        world.plan()
        assert not any(world.send(1))
        node.lost_at = when, calls
        began = time.monotonic()
        with pytest.raises(EngineDeadError, match=r"has lost its part on node 10\.0\.0\.2"):
            world.send(2)
        assert time.monotonic() - began < 30  # the deadline of the hosts is 60 s
        assert made[0].is_closed and not made[1].is_closed and made[0].versions == made[1].versions == [1]
        exchange.leave(node.host)  # its threads would wait until their own deadlines
        exchange.finish(node.host)
        with pytest.raises(EngineDeadError, match=r"has lost its part on node 10\.0\.0\.2"):
            world.plan()
        made[0].is_closed = False  # it is started again, and with it a process on the other node
        world.readers.members[0].host.apply.remote(lambda host: setattr(host, "others", [OtherNode()])).result(60)
        world.plan()
        assert not any(world.send(3, verify=True))
        assert_loaded(made, tensors)


def a_node_falls_silent_before():
    """As :func:`a_node_falls_silent`, between two transfers."""
    a_node_falls_silent(exchange.begin, 0)
