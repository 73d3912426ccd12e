"""Code of others in a shared event loop: how it may end, and what goes on."""

import asyncio
import concurrent.futures
import contextlib
import functools
import subprocess
import sys
import threading
import time

import pytest

from corerl import foreign
from corerl.errors import ExitError, RunError, Stopped, described
from corerl.foreign import LoopThread, SharedLoop, contained, harmless


@pytest.fixture
def run():
    """``run(coroutine)`` in a shared loop."""
    with asyncio.Runner(loop_factory=SharedLoop) as runner:
        yield runner.run


async def cancels_a_helper():
    helper = asyncio.create_task(asyncio.sleep(60))
    helper.cancel()
    await helper


async def cancels_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(60)


async def raises(error):
    raise error


async def exits_in_a_thread():
    await asyncio.to_thread(lambda: exec("raise SystemExit(4)"))


async def exits_in_a_group():
    async with asyncio.TaskGroup() as group:
        group.create_task(raises(SystemExit(5)))
        group.create_task(asyncio.sleep(60))


async def awaits_a_cancelled_future():
    future = concurrent.futures.Future()
    future.cancel()
    await asyncio.wrap_future(future)


async def exits_in_an_anyio_group():
    import anyio

    async with anyio.create_task_group() as group:
        group.start_soon(raises, SystemExit(6))


ENDS = {
    cancels_a_helper: "CancelledError",
    cancels_itself: "CancelledError",
    awaits_a_cancelled_future: "CancelledError",
    exits_in_a_thread: "SystemExit: 4",
    exits_in_a_group: "SystemExit: 5",
    exits_in_an_anyio_group: "SystemExit: 6",
    lambda: raises(SystemExit()): "SystemExit",
    lambda: raises(KeyboardInterrupt()): "KeyboardInterrupt",
    lambda: raises(GeneratorExit()): "GeneratorExit",
    lambda: raises(asyncio.CancelledError("mine")): "CancelledError",
    lambda: raises(BaseExceptionGroup("two", [SystemExit(7), ValueError()])): "SystemExit: 7",
}


@pytest.mark.parametrize("work", ENDS, ids=[f"{number}-{text}" for number, text in enumerate(ENDS.values())])
def test_code_that_exits_or_leaks_a_cancellation_raises_an_error_of_its_own(run, work):
    async def main():
        with pytest.raises(ExitError, match=f"^the agent raised {ENDS[work]}"):
            await contained(work, "the agent")
        return await contained(lambda: asyncio.sleep(0, 42), "the next")

    assert run(main()) == 42


def test_other_errors_stay_as_they_are_and_a_signal_passes(run):
    for error in (ValueError("mine"), RunError("ours"), Stopped(15)):
        with pytest.raises(type(error)) as found:
            run(contained(functools.partial(raises, error), "the agent"))
        assert found.value is error
    with pytest.raises(Stopped):
        run(contained(lambda: raises(BaseExceptionGroup("two", [ValueError(), Stopped(15)])), "the agent"))


def test_a_cancellation_of_the_caller_reaches_the_code_and_is_no_error_of_it(run):
    ended = []

    async def waits():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("waits")

    async def main():
        task = asyncio.create_task(contained(waits, "the agent"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    assert ended == ["waits"]


async def hangs_in_finally():
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(60)


async def swallows_a_cancellation():
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    await asyncio.sleep(60)


async def exits_when_cancelled():
    try:
        await asyncio.sleep(60)
    finally:
        raise SystemExit(8)


@pytest.mark.parametrize("work", [hangs_in_finally, swallows_a_cancellation, exits_when_cancelled])
def test_cancelled_code_that_does_not_end_is_left_behind(monkeypatch, capsys, work):
    monkeypatch.setattr(foreign, "ENDING", 0.05)

    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await contained(work, "the agent")
        return asyncio.all_tasks() - {asyncio.current_task()}

    with asyncio.Runner(loop_factory=SharedLoop) as runner:  # whose end cancels what is left once more
        start = time.monotonic()
        left = runner.run(main())
        assert time.monotonic() - start < 10
    said = "the agent has not ended 0.05 s after its cancellation: it is left behind\n"
    assert capsys.readouterr().err == ("" if work is exits_when_cancelled else said)
    assert len(left) == (work is not exits_when_cancelled)


def test_the_loop_goes_on_if_tasks_and_callbacks_that_nobody_awaits_exit(run, capsys):
    async def main():
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: exec("raise SystemExit(0)"))
        loop.call_soon(lambda: exec("raise KeyboardInterrupt"))
        left = asyncio.create_task(raises(SystemExit(0)))
        await asyncio.sleep(0.01)
        assert isinstance(left.exception(), SystemExit)
        return 42

    assert run(main()) == 42
    assert capsys.readouterr().err.count("of its own: the loop goes on") == 1


def test_ctrl_c_ends_the_loop_once_its_main_task_is_cancelled():
    async def main():
        asyncio.current_task().cancel()
        asyncio.get_running_loop().call_soon(lambda: exec("raise KeyboardInterrupt"))
        await asyncio.sleep(60)

    with pytest.raises(KeyboardInterrupt), asyncio.Runner(loop_factory=SharedLoop) as runner:
        runner.run(main())


def test_the_end_of_the_loop_beside_an_exit_ends_it_and_a_stop_does_not(capsys):
    loop = SharedLoop()
    loop.call_soon(loop.stop)
    loop.call_soon(loop.finish)
    loop.call_soon(lambda: exec("raise SystemExit"))
    ended = threading.Thread(target=loop.run_forever, daemon=True)
    ended.start()
    ended.join(10)
    assert not ended.is_alive()
    loop.close()
    assert "stopped the event loop: the loop goes on" in capsys.readouterr().err


def test_a_thread_with_a_loop_outlives_exits_in_it():
    thread = LoopThread("test")

    async def leaves_an_exit():
        task = asyncio.create_task(raises(SystemExit(3)))
        await asyncio.wait({task})
        assert isinstance(task.exception(), SystemExit)

    exits = {lambda: raises(SystemExit(3)): "it raised SystemExit: 3", cancels_itself: "it raised CancelledError"}
    for work, text in exits.items():
        with pytest.raises(ExitError, match=text):
            thread.submit(work, "it").result(10)
    thread.submit(leaves_an_exit, "it").result(10)
    assert thread.submit(lambda: asyncio.sleep(0, 42), "it").result(10) == 42
    thread.close(asyncio.sleep(0), 10)


def test_errors_are_described_in_one_line():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    group = ExceptionGroup("two", [ExceptionGroup("one", [KeyError("a\n b")]), ValueError()])
    found = [described(each) for each in (group, Mute(), SystemExit(), harmless(StopIteration(3), "the tool"))]
    assert found == ["KeyError: 'a\\n b'", "Mute: its text cannot be written", "SystemExit", "StopIteration: 3"]


def test_a_thread_that_does_not_end_holds_up_no_process():
    program = (
        "import asyncio, time; from corerl.foreign import SharedLoop\n"
        "async def main():\n"
        "    for _ in range(100): asyncio.get_running_loop().run_in_executor(None, time.sleep, 100)\n"
        "    return await asyncio.to_thread(sum, [40, 2])\n"
        "print(SharedLoop().run_until_complete(main()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "42\n"
