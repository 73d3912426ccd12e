import asyncio
import threading
import time

import pytest

from corerl_agents.calls import Calls


def calls(function, arguments):
    """The answers to all, asked at the same time."""
    queue = Calls(num_workers=4, timeout=0.5)

    async def ask():
        return await asyncio.gather(*(queue.call(function, *given) for given in arguments))

    answers = asyncio.run(ask())
    queue.close()
    return answers


def double(number):
    return 2 * number


async def double_later(number):
    await asyncio.sleep(0.01)
    return 2 * number


@pytest.mark.parametrize("function", [double, double_later])
def test_answers_come_in_the_order_of_the_calls(function):
    answers = calls(function, [(number,) for number in range(20)])
    assert [answer.value for answer in answers] == [2 * number for number in range(20)]
    assert {answer.error for answer in answers} == {None}


@pytest.mark.parametrize("is_async", [True, False])
def test_a_call_that_hangs_or_raises_costs_its_own_answer_alone(is_async):
    release = threading.Event()

    def plain(number):
        if number == 1:
            release.wait(20)
        if number == 2:
            raise SystemExit("stop")
        return number

    async def coroutine(number):
        if number == 1:
            await asyncio.sleep(20)
        if number == 2:
            raise ValueError("stop")
        return number

    start = time.perf_counter()
    answers = calls(coroutine if is_async else plain, [(number,) for number in range(8)])
    release.set()
    assert time.perf_counter() - start < 10
    assert [answer.value for answer in answers] == [0, None, None, 3, 4, 5, 6, 7]
    assert answers[1].error == "took longer than 0.5 s"
    assert answers[1].seconds >= 0.5
    assert answers[2].error == f"raised {'ValueError' if is_async else 'SystemExit'}: stop"


def test_a_coroutine_that_exits_or_leaks_a_cancellation_costs_its_own_answer_alone():
    async def exits():
        raise SystemExit(3)

    async def ends(how):
        if how == 0:
            await exits()
        if how == 1:
            await asyncio.create_task(exits())
        if how == 2:
            asyncio.current_task().cancel()
        if how == 3:
            asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        return how

    answers = calls(ends, [(how,) for how in range(5)])
    assert [answer.value for answer in answers] == [None, None, None, 3, 4]
    texts = ("raised SystemExit: 3", "raised SystemExit: 3", "raised CancelledError: ")
    assert [str(answer.error).startswith(text) for answer, text in zip(answers, texts, strict=False)] == [True] * 3


def test_at_most_num_workers_run_at_a_time():
    running, most, lock = 0, 0, threading.Lock()

    def work():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1

    calls(work, [()] * 16)
    assert 1 < most <= 4
