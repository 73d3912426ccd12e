"""Many requests under way on two replicas, each a call of its own."""

import asyncio
import gc
import threading
import weakref

import pytest
from ray_toys import ENGINE, SECONDS, Many, each, request

from corerl.contracts.config import RuntimeConfig
from corerl.contracts.rollout_backends import EngineLoad
from corerl.contracts.runtimes import Role
from corerl.errors import EngineDeadError
from corerl_ray.options import RayOptions
from corerl_ray.runtime import RayRuntime

pytestmark = pytest.mark.xdist_group("ray")  # whose cluster is started once

OPEN = 2000
ROLE = Role("rollout", ENGINE.key, ENGINE.part, distributed=True)


@pytest.fixture(scope="module")
def rollout(cluster):
    """Two workers; the last test ends one of them."""
    runtime = RayRuntime(RuntimeConfig(name="ray"), RayOptions(workers=1, rollout_workers=2))
    yield runtime.spawn(ROLE, Many)
    runtime.close()


def in_time(work):
    return asyncio.run(asyncio.wait_for(work, SECONDS))


async def until(condition):
    while not condition():
        await asyncio.sleep(0.02)


def running(group):
    """The requests that each worker has now."""
    return [len(names) for names in under_way(group)]


def under_way(group):
    return each(group, "names")


def ask(rollout, names, finished):
    """Calls of one request each."""
    return [
        asyncio.create_task(
            rollout.generate(
                [request(name, session=str(name))], lambda _, found, name=name: finished.update({name: found})
            )
        )
        for name in names
    ]


def test_the_load_of_the_engines_is_known_from_the_start_and_follows_them(rollout):
    assert rollout.engine_load() == EngineLoad(room=2 * Many.ROOM)

    async def work():
        calls = ask(rollout, range(10), {})
        await until(lambda: rollout.engine_load() == EngineLoad(room=2 * Many.ROOM, running=10))
        rollout.let_go()
        await asyncio.gather(*calls)

    in_time(work())


def test_thousands_of_requests_are_under_way_without_a_thread_each(rollout):
    before, finished, orders = threading.active_count(), {}, []

    async def work():
        calls = ask(rollout, range(OPEN), finished)
        await until(lambda: sum(running(rollout)) == OPEN)
        orders.extend(weakref.ref(order) for order in rollout.exchange._orders)
        assert threading.active_count() <= before + 2
        first, second = running(rollout)
        assert first + second == OPEN and abs(first - second) <= 2
        rollout.let_go()
        await asyncio.gather(*calls)

    gc.disable()  # collections of all objects are rare: a call is freed without
    try:
        in_time(work())
        in_time(until(lambda: not any(order() for order in orders)))
    finally:
        gc.enable()
    assert len(orders) == OPEN
    assert finished == {name: [str(name)] for name in range(OPEN)}
    assert running(rollout) == [0, 0] and not any(rollout.loads.samples) and not any(rollout.loads.tokens)


def test_sessions_return_to_their_worker_and_cancelled_requests_end_there(rollout):
    finished = {}

    async def work():
        calls = ask(rollout, range(100), finished)
        await until(lambda: sum(running(rollout)) == 100)
        homes = [set(names) for names in under_way(rollout)]
        for call in calls:
            call.cancel()
        assert all(
            isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*calls, return_exceptions=True)
        )
        await until(lambda: running(rollout) == [0, 0])
        assert not any(rollout.loads.samples)
        again = ask(rollout, reversed(range(100)), finished)
        await until(lambda: sum(running(rollout)) == 100)
        assert [set(names) for names in under_way(rollout)] == homes
        rollout.let_go()
        await asyncio.gather(*again)

    in_time(work())
    assert len(finished) == 100


def test_the_requests_of_a_worker_that_is_killed_go_to_the_other(rollout):
    finished = {}

    async def work():
        calls = ask(rollout, range(OPEN // 4), finished)
        await until(lambda: sum(running(rollout)) == OPEN // 4)
        lost = running(rollout)[1]
        rollout.members[1].host.call.remote("die", {}, 1)
        await until(lambda: len(rollout.members) == 1)
        await until(lambda: running(rollout) == [OPEN // 4])
        rollout.let_go()
        return lost, await asyncio.gather(*calls, return_exceptions=True)

    lost, results = in_time(work())
    errors = [each for each in results if each is not None]
    assert len(finished) == OPEN // 4 and 0 < lost < OPEN // 4
    # without a listener, one more call is told of the loss
    assert lost <= len(errors) <= lost + 1 and all(isinstance(each, EngineDeadError) for each in errors)
