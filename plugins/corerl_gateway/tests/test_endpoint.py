"""The endpoint of a run: its address, its options, its begin and its end; episodes that never mix."""

import asyncio
import random
import socket

import pytest
from gateway_toys import Recording, Script, client, post, read_by, serving, text_of
from test_chat_completions import CHAT, USER

from corerl.config import typed
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.errors import ConfigError, RunError
from corerl_gateway.endpoint import listen
from corerl_gateway.options import KEY, EndpointOptions
from corerl_gateway.plugin import config_errors, make_endpoint
from listening import listeners

BODY = {"model": "any", "messages": [USER]}


def config(**endpoint):
    made = TrainConfig(ModelConfig("models/tiny-7b"))
    made.rollout.multi_turn.endpoint = endpoint
    return made


def run(main, seconds=30):
    return asyncio.run(asyncio.wait_for(main(), seconds))


def test_nothing_listens_before_the_first_model_and_after_the_end():
    endpoint = make_endpoint(config())

    async def main():
        address = endpoint.open(Recording(Script("5")))
        host, port = address.base_url.split("/")[2].split(":")
        assert host == "127.0.0.1" and address.base_url.endswith("/v1")
        await post(address, CHAT, BODY)
        async with client(address) as session, session.get(address.base_url + "/models") as response:
            card = (await response.json())["data"][0]
            assert (card["id"], card["max_model_len"]) == ("tiny-7b", 1024)
        return int(port)

    port = run(main)
    endpoint.close()
    endpoint.close()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_it_listens_on_the_loopback_alone():
    import os

    async def main():
        async with serving(Recording(Script("5"))) as (_, [address]):
            port = int(address.base_url.split("/")[2].split(":")[1])
            return [each for each in listeners(os.getpid()) if each.port == port]

    [found] = run(main)
    assert found.is_local


def test_options_select_host_and_port():
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]

    async def main():
        async with serving(Recording(Script("5")), host="localhost", port=port, public_host="127.0.0.1") as (_, [one]):
            assert one.base_url.startswith(f"http://127.0.0.1:{port}/")
            await post(one, CHAT, BODY)

    run(main)


def test_a_port_that_is_taken_is_an_error_with_its_keys():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]

        async def main():
            async with serving(Recording(Script("5")), port=port):
                pass

        with pytest.raises(RunError, match=rf"port {port} of 127.0.0.1 .*set {KEY}.host and {KEY}.port"):
            run(main)


@pytest.mark.parametrize(
    ("endpoint", "key"),
    [
        ({"hots": "x"}, f"{KEY}.hots"),
        ({"port": 70_000}, f"{KEY}.port"),
        ({"timeout": 0}, f"{KEY}.timeout"),
        ({"max_body_mb": "much"}, f"{KEY}.max_body_mb"),
        ({"host": "0.0.0.0"}, f"{KEY}.public_host"),
        ({"host": "::"}, f"{KEY}.public_host"),
    ],
)
def test_wrong_options_are_errors_before_the_run(endpoint, key):
    [error] = config_errors(config(**endpoint))
    assert isinstance(error, ConfigError) and error.key == key


def test_options_are_keys_of_a_config():
    values = {"model": {"path": "x"}, "rollout": {"multi_turn": {"endpoint": {"host": "0.0.0.0", "public_host": "n"}}}}
    made = typed.build(TrainConfig, values)
    assert not list(config_errors(made)) and not EndpointOptions("0.0.0.0").is_local and EndpointOptions().is_local


@pytest.mark.parametrize("seed", range(3))
def test_two_hundred_interleaved_sessions_never_mix(seed):
    """Each session says its own number; branches, retries and cut turns at random."""
    numbers = range(200)
    models = [Recording(Script(*(f"session {number} turn {turn}" for turn in range(20)))) for number in numbers]

    async def play(number, address, chance):
        messages = [{"role": "user", "content": f"I am {number}."}]
        models[number].policy.seconds = chance.random() / 200
        for _ in range(chance.randint(1, 5)):
            more = {"max_tokens": 5} if chance.random() < 0.2 else {}
            answer = await post(
                address, CHAT, {"model": "x", "messages": messages, "n": chance.choice([1, 1, 2]), **more}
            )
            said = [choice["message"]["content"] for choice in answer["choices"]]
            assert all(text == f"session {number} turn "[: len(text)] or f"session {number} " in text for text in said)
            if chance.random() < 0.8:  # else a retry
                reply = chance.choice(answer["choices"])["message"]
                messages = [*messages, reply, {"role": "user", "content": f"{number} goes on"}]
            if chance.random() < 0.2:
                messages = messages[:1]  # a branch

    async def main():
        async with serving(*models) as (endpoint, addresses):
            order = list(numbers)
            random.Random(seed).shuffle(order)
            await asyncio.gather(*(play(each, addresses[each], random.Random(f"{seed} {each}")) for each in order))
            for address in addresses:
                endpoint.shut(address)

    run(main)
    for number, model in zip(numbers, models, strict=True):
        model.check()
        for node in model.nodes:
            text = text_of(read_by(node))
            assert text.startswith(f"user\nI am {number}.\n")
            others = {word for word in text.replace(".", " ").split() if word.isdigit() and int(word) > 19}
            assert others <= {str(number)}
