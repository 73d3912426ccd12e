"""Transfers whose group breaks, for a process of their own: gloo's loop may use a core until the process ends."""

import time

import pytest
from pieces_world import ApartWorld, Engine, assert_loaded, model


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
