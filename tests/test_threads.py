"""Event loops within an event loop that runs."""

import asyncio

import pytest

from corerl.threads import outside_event_loop


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


def test_a_loop_runs_within_a_task_of_another_which_goes_on_afterwards() -> None:
    async def notebook() -> list[int]:
        task = asyncio.current_task()
        with outside_event_loop():
            first = asyncio.run(answer())
        assert asyncio.current_task() is task
        return [first, await asyncio.wait_for(answer(), 5)]

    assert asyncio.run(notebook()) == [42, 42]


def test_a_loop_runs_within_a_callback_which_no_task_calls() -> None:
    async def notebook() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def call() -> None:
            with outside_event_loop():
                found.set_result(asyncio.run(answer()))

        asyncio.get_running_loop().call_soon(call)
        return await found

    assert asyncio.run(notebook()) == 42


def test_the_outer_loop_is_back_after_an_error() -> None:
    async def notebook() -> int:
        with pytest.raises(ZeroDivisionError), outside_event_loop():
            raise ZeroDivisionError
        return await answer()

    assert asyncio.run(notebook()) == 42


def test_without_a_loop_nothing_changes() -> None:
    with outside_event_loop():
        assert asyncio.run(answer()) == 42
