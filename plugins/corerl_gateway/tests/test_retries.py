"""A client that repeats a request gets the answer that was lost on its way; nothing else is recorded."""

import asyncio

import pytest
from gateway_toys import Recording, Script, client, serving

from corerl_gateway.answers import REMEMBERED, Answers

USER = {"role": "user", "content": "Go."}
BODIES = {
    "/chat/completions": {"messages": [USER]},
    "/responses": {"input": "Go."},
    "/messages": {"max_tokens": 9, "messages": [USER]},
    "/inference/v1/generate": {"token_ids": [5]},
}
AGAIN = {"x-stainless-retry-count": "1"}


def text_of(path, answer):
    if path == "/messages":
        return answer["content"][0]["text"]
    if path == "/responses":
        return answer["output"][0]["content"][0]["text"]
    [choice] = answer["choices"]
    return choice["message"]["content"] if "message" in choice else bytes(choice["token_ids"][:-1]).decode()


async def post(session, address, path, body, **headers):
    async with session.post(address.base_url + path, json=body, headers=headers) as response:
        if not body.get("stream"):
            return await response.json()
        lines = (await response.text()).splitlines()
        return [line for line in lines if line and line[0] != ":"]  # pings come at any time


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_lost_answer_is_given_again_and_recorded_once(path, stream):
    model = Recording(Script("1", "2", "3"))

    async def main():
        async with serving(model) as (_, [address]), client(address) as session:
            body = {**BODIES[path], "stream": stream}
            first = await post(session, address, path, body, **{"x-stainless-retry-count": "0"})
            again = [await post(session, address, path, body, **{"x-stainless-retry-count": n}) for n in "12"]
            return first, again, await post(session, address, path, body)

    first, again, other = asyncio.run(main())
    assert again == [first] * 2 and other != first
    if not stream:
        assert (text_of(path, first), text_of(path, other)) == ("1", "2")
    assert len(model.nodes) == 2
    model.check()


def test_a_repeated_request_joins_the_one_under_way_and_outlives_its_client():
    model = Recording(Script("1", "2"))

    async def main():
        model.policy.held = asyncio.Event()
        async with serving(model) as (_, [address]), client(address) as one, client(address) as two:
            path, body = "/chat/completions", BODIES["/chat/completions"]
            first = asyncio.create_task(post(one, address, path, body))
            await asyncio.sleep(0.1)
            again = asyncio.create_task(post(two, address, path, body, **AGAIN))
            await asyncio.sleep(0.1)
            first.cancel()
            await one.close()
            await asyncio.sleep(0.1)
            model.policy.held.set()
            return await again

    assert text_of("/chat/completions", asyncio.run(asyncio.wait_for(main(), 20))) == "1"
    assert len(model.nodes) == 1 and model.policy.cancelled == 0


def test_a_request_whose_client_went_is_asked_again():
    model = Recording(Script("1", "2"))

    async def main():
        model.policy.held = asyncio.Event()
        async with serving(model) as (_, [address]), client(address) as two:
            async with client(address) as one:
                first = asyncio.create_task(post(one, address, "/chat/completions", BODIES["/chat/completions"]))
                await asyncio.sleep(0.1)
                first.cancel()
            await asyncio.sleep(0.1)
            model.policy.held.set()
            return await post(two, address, "/chat/completions", BODIES["/chat/completions"], **AGAIN)

    assert text_of("/chat/completions", asyncio.run(asyncio.wait_for(main(), 20))) == "2"
    assert len(model.nodes) == 1 and model.policy.cancelled == 1


@pytest.mark.parametrize("headers", [{}, {"x-stainless-retry-count": "0"}, {"x-stainless-retry-count": "٣x"}])
def test_equal_requests_that_are_no_repetitions_have_answers_of_their_own(headers):
    model = Recording(Script("1", "2"))

    async def main():
        async with serving(model) as (_, [address]), client(address) as session:
            body = BODIES["/chat/completions"]
            both = [await post(session, address, "/chat/completions", body, **headers) for _ in range(2)]
            return [text_of("/chat/completions", each) for each in both]

    assert asyncio.run(main()) == ["1", "2"] and len(model.nodes) == 2


def test_a_repeated_request_of_another_body_path_episode_or_key_is_a_new_one():
    models = [Recording(Script("1", "2", "3", "4")), Recording(Script("9"))]
    path, body = "/chat/completions", BODIES["/chat/completions"]

    async def main():
        async with serving(*models) as (_, [address, other]), client(address) as session, client(other) as second:
            texts = [text_of(path, await post(session, address, path, body, **{"Idempotency-Key": "a"}))]
            texts.append(text_of(path, await post(session, address, path, body, **{"Idempotency-Key": "a"})))
            texts.append(text_of(path, await post(session, address, path, body, **{"Idempotency-Key": "b"})))
            texts.append(text_of(path, await post(session, address, path, {**body, "max_tokens": 5}, **AGAIN)))
            texts.append(text_of(path, await post(second, other, path, body, **{"Idempotency-Key": "a"})))
            return texts

    assert asyncio.run(main()) == ["1", "1", "2", "3", "9"]


def test_a_failed_request_is_asked_again_and_old_answers_are_forgotten():
    async def main():
        answers, asked = Answers(), []

        async def work(number):
            asked.append(number)
            if number == 0:
                raise ValueError
            return b""

        def ask(mark):
            with answers.asked(mark, AGAIN, lambda: asyncio.create_task(work(len(asked)))) as task:
                return task

        first = ask(b"a")
        with pytest.raises(asyncio.CancelledError):
            await first
        for mark in (b"a", *map(bytes.fromhex, (f"{n:04x}" for n in range(REMEMBERED)))):
            with answers.asked(mark, AGAIN, lambda: asyncio.create_task(work(len(asked)))) as task:
                await asyncio.wait({task})
        assert len(answers._latest) == REMEMBERED
        return len(asked)

    assert asyncio.run(main()) == REMEMBERED + 1
