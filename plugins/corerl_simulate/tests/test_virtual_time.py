"""The event loop without waiting."""

import asyncio
import time

import pytest

from corerl.errors import RunError
from corerl_simulate.virtual_time import MOST, StandstillError, VirtualTime


def test_timers_fire_in_order_at_their_moments_and_take_no_time() -> None:
    clock = VirtualTime()
    seen: list[tuple[str, float]] = []

    async def at(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, clock.now))

    async def both() -> None:
        await asyncio.gather(at("late", 3600.0), at("early", 0.5), at("between", 7.25))

    start = time.monotonic()
    clock.run(both())
    assert seen == [("early", 0.5), ("between", 7.25), ("late", 3600.0)]
    assert time.monotonic() - start < 60
    clock.close()


def test_tasks_go_on_while_the_caller_waits_and_stand_still_between() -> None:
    clock = VirtualTime()
    ticks: list[float] = []

    async def begin() -> None:
        async def tick() -> None:
            while True:
                await asyncio.sleep(1.0)
                ticks.append(clock.now)

        clock.task = asyncio.create_task(tick())  # type: ignore[attr-defined]

    clock.run(begin())
    assert ticks == []
    clock.wait(2.5)
    assert ticks == [1.0, 2.0] and clock.now == 2.5
    clock.close()


def test_a_wait_that_nothing_ends_is_an_error_with_its_moment() -> None:
    clock = VirtualTime()

    async def stuck() -> None:
        await asyncio.sleep(3)
        await asyncio.get_running_loop().create_future()

    with pytest.raises(StandstillError, match=r"stands still at virtual second 3\.000"):
        clock.run(stuck())
    clock.close()


def test_an_endless_wait_with_timers_is_an_error_too() -> None:
    clock = VirtualTime()

    async def forever() -> None:
        while True:
            await asyncio.sleep(MOST / 4)

    with pytest.raises(RunError, match="did not come to its next result"):
        clock.run(forever())
    clock.close()


def test_a_future_of_another_thread_wakes_the_loop() -> None:
    clock = VirtualTime()

    async def wait() -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon_threadsafe(future.set_result, "there")
        return await future

    assert clock.run(wait()) == "there"
    clock.close()
