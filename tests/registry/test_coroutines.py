"""Async functions called without await, as scorers are."""

import asyncio
import functools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from corerl.errors import RunError
from corerl.registry import Entry, Owner, Selected
from corerl.registry.coroutines import blocking, is_async


async def double(number, options=None):
    await asyncio.sleep(0)
    return 2 * number * (options or 1)


class Doubler:
    async def __call__(self, number):
        return await double(number)


def wrapped(function):
    @functools.wraps(function)
    def call(*args):
        return function(*args)

    return call


@pytest.mark.parametrize("function", [double, Doubler(), wrapped(double), functools.partial(double, options=1)])
def test_async_functions_are_told_and_called_like_others(function):
    assert is_async(function)
    assert blocking(function)(21) == 42


@pytest.mark.parametrize("function", [len, int, Doubler, lambda number: number, functools.partial(max, 3)])
def test_others_are_left_alone(function):
    assert not is_async(function)


def test_a_decorator_that_awaits_by_itself_is_no_trouble():
    @functools.wraps(double)
    def call(number):
        return asyncio.run(double(number))

    assert blocking(call)(21) == 42


def test_a_registered_async_function_is_loaded_ready_to_be_called_with_its_options():
    selected = Selected(Entry("scorer", "double", double, Owner("acme")), options=10)
    assert selected.load()(2) == 40


def test_all_calls_share_one_loop_and_wait_at_the_same_time():
    everybody = threading.Barrier(4)  # broken, were a call to wait for the end of another

    async def meet():
        await asyncio.to_thread(everybody.wait, 10)
        return id(asyncio.get_running_loop())

    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(blocking(meet)) for _ in range(4)]
    assert len({call.result() for call in calls}) == 1


@pytest.mark.parametrize(("raised", "seen"), [(ValueError("no"), ValueError), (SystemExit(3), RunError)])
def test_what_is_raised_arrives_and_the_next_call_works(raised, seen):
    async def fail():
        raise raised

    with pytest.raises(seen):
        blocking(fail)()
    assert blocking(double)(1) == 2


def test_a_forked_process_has_a_loop_of_its_own():
    assert blocking(double)(1) == 2
    child = os.fork()
    if child == 0:
        os._exit(blocking(double)(3))
    deadline = time.monotonic() + 20
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(done[1]) == 6
