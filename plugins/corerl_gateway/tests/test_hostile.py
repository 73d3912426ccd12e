"""Clients that attack the endpoint: keys, bodies, slow and vanishing connections."""

import asyncio
import gc
import json
import logging
import time
import weakref
from dataclasses import replace

import pytest
from gateway_toys import Recording, Script, client, post, serving
from test_chat_completions import CHAT, USER

from corerl.contracts.agents import Address
from corerl_gateway import requests
from corerl_gateway.endpoint import LINGERING

BODY = {"model": "any", "messages": [USER]}
PATHS = {
    CHAT: BODY,
    "/responses": {"input": "x"},
    "/messages": {**BODY, "max_tokens": 9},
    "/inference/v1/generate": {"token_ids": [1]},
}


def run(main, seconds=20):
    return asyncio.run(asyncio.wait_for(main(), seconds))


def raw(address, path=CHAT, body=b"", **headers):
    """The bytes of a request."""
    place = "/" + address.base_url.split("/", 3)[3]
    own = {"Host": "x", "Authorization": f"Bearer {address.api_key}", "Content-Length": str(len(body)), **headers}
    lines = [f"POST {place}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in own.items() if value is not None)]
    return "\r\n".join(lines).encode(errors="surrogateescape") + b"\r\n\r\n" + body


async def connect(address):
    host, port = address.base_url.split("/")[2].split(":")
    return await asyncio.open_connection(host, int(port))


async def answered(address, sent):
    """(status, JSON) of raw bytes; (0, None) if the connection is closed without an answer."""
    reader, writer = await connect(address)
    try:
        writer.write(sent)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        return int(head.split()[1]), json.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, None
    finally:
        writer.close()


@pytest.mark.parametrize("path", PATHS)
def test_only_the_key_of_the_episode_opens_it(path):
    models = [Recording(Script("5")), Recording(Script("6"))]

    async def main():
        async with serving(*models) as (_, [mine, other]):
            good = mine.api_key
            for key in ("", "x", other.api_key, good[:-1], good + "x", good.lower(), "é", "Bearer " + good):
                answer = await post(Address(mine.base_url, key), path, PATHS[path], 401)
                assert good not in json.dumps(answer) and other.api_key not in json.dumps(answer)
                kind = answer["error"]["type"]
                assert kind == "authentication_error" and (answer.get("type") == "error") == (path == "/messages")
            status, _ = await answered(mine, raw(mine, path, Authorization="Bearer \udcff\udcfe"))
            assert status == 401
            status, _ = await answered(mine, raw(mine, path, Authorization=None))
            assert status == 401
            await post(mine, path, PATHS[path])

    run(main)
    assert len(models[0].nodes) == 1 and not models[1].nodes


@pytest.mark.parametrize("path", PATHS)
def test_a_key_opens_nothing_after_its_episode(path):
    model = Recording(Script("5"))

    async def main():
        async with serving(model, Recording(Script("6"))) as (endpoint, [mine, other]):
            await post(mine, path, PATHS[path])
            endpoint.shut(mine)
            endpoint.shut(mine)
            answer = await post(mine, path, PATHS[path], 404)
            assert "ended" in answer["error"]["message"]
            await post(other, path, PATHS[path])

    run(main)
    assert len(model.nodes) == 1


@pytest.mark.parametrize("streams", [False, True])
def test_the_end_of_an_episode_cancels_its_requests_and_their_clients_get_an_answer(streams):
    model = Recording(Script("5"))

    async def main():
        model.policy.held = asyncio.Event()
        async with serving(model) as (endpoint, [address]), client(address) as session:
            under_way = asyncio.create_task(session.post(address.base_url + CHAT, json={**BODY, "stream": streams}))
            while not model.policy.under_way:
                await asyncio.sleep(0.001)
            endpoint.shut(address)
            response = await under_way
            assert response.status == (200 if streams else 404)
            assert "episode_not_found" in await response.text()

    run(main)
    assert (model.policy.cancelled, model.policy.under_way, model.nodes) == (1, 0, [])


@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_vanishes_frees_the_engine(streams):
    model = Recording(Script("5"))

    async def main():
        model.policy.held = asyncio.Event()
        async with serving(model) as (_, [address]):
            reader, writer = await connect(address)
            body = json.dumps({**BODY, "stream": streams, "n": 3}).encode()
            writer.write(raw(address, body=body))
            while model.policy.under_way < 3:
                await asyncio.sleep(0.001)
            if streams:
                assert b"text/event-stream" in await reader.readuntil(b"\r\n\r\n")
                assert requests.PING in await reader.readuntil(requests.PING)
            writer.transport.abort()
            while model.policy.under_way:
                await asyncio.sleep(0.001)
            model.policy.held.set()
            await post(address, CHAT, BODY)

    run(main)
    assert model.policy.cancelled == 3 and len(model.nodes) == 1


def test_a_stream_has_comments_until_its_answer_is_there(monkeypatch):
    monkeypatch.setattr(requests, "PING_SECONDS", 0.02)
    model = Recording(Script("5", seconds=0.2))

    async def main():
        async with (
            serving(model) as (_, [address]),
            client(address) as session,
            session.post(address.base_url + CHAT, json={**BODY, "stream": True}) as response,
        ):
            return await response.read()

    assert run(main).count(requests.PING) >= 3


def test_a_body_beyond_the_limit_is_refused_before_it_is_sent():
    async def main():
        async with serving(Recording(Script("5"))) as (_, [address]):
            length = str(100 * 2**20)
            sent = raw(address, **{"Content-Length": length, "Content-Type": "application/json"})
            started = time.perf_counter()
            status, answer = await answered(address, sent)
            assert (status, answer["error"]["type"]) == (413, "request_too_large")
            assert time.perf_counter() - started < 20

    run(main)


def test_a_body_of_unknown_length_ends_at_the_limit_and_a_second_later():
    async def main():
        async with serving(Recording(Script("5")), max_body_mb=0.5) as (_, [address]):
            reader, writer = await connect(address)
            status = asyncio.create_task(reader.readline())
            writer.write(raw(address, **{"Content-Length": None, "Transfer-Encoding": "chunked"}))
            chunk, started = b"10000\r\n" + b"x" * 65536 + b"\r\n", time.perf_counter()
            with pytest.raises(ConnectionError):
                while time.perf_counter() - started < LINGERING + 3:
                    writer.write(chunk)
                    await writer.drain()
                    await asyncio.sleep(0)
            assert b" 413 " in await status

    run(main)


def test_a_large_body_within_the_limit_is_read_and_one_that_waits_for_leave_gets_it():
    async def main():
        async with serving(Recording(Script("5")), max_body_mb=2) as (_, [address]):
            text = json.dumps({**BODY, "user": "x" * 2**20}).encode()
            reader, writer = await connect(address)
            writer.write(raw(address, body=text, Expect="100-continue")[: -len(text)])
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(text)
            assert b" 200 " in await reader.readline()

    run(main)


BAD = {
    "empty": b"",
    "half": b'{"messages": [',
    "no object": b"[1, 2]",
    "no text": b"\xff\xfe{}",
    "deep lists": b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "rather deep": b'{"tools": ' + b"[" * 80 + b"]" * 80 + b"}",
    "digits": b'{"max_tokens": ' + b"9" * 5000 + b"}",
    "half a character": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "not a number": b'{"temperature": NaN, "messages": [{"role": "user", "content": "x"}]}',
}


@pytest.mark.parametrize("path", PATHS)
def test_bodies_that_are_no_request_are_errors_of_the_request(path):
    model = Recording(Script("5"))

    async def main():
        async with serving(model) as (_, [address]):
            for name, body in BAD.items():
                status, answer = await answered(address, raw(address, path, body))
                assert (status, answer["error"]["type"]) == (400, "invalid_request_error"), name
                assert len(json.dumps(answer)) < 1000
            await post(address, path, PATHS[path])

    run(main)
    assert len(model.nodes) == 1


def test_compressed_bodies_are_refused():
    async def main():
        async with serving(Recording(Script("5"))) as (_, [address]):
            status, _ = await answered(address, raw(address, body=b"x" * 9, **{"Content-Encoding": "gzip"}))
            assert status == 415

    run(main)


def test_headers_and_bodies_that_drip_meet_a_deadline():
    async def main():
        async with serving(Recording(Script("5")), timeout=0.3) as (_, [address]):
            whole = raw(address, body=json.dumps(BODY).encode())
            started = time.perf_counter()

            async def drip(sent, rest):
                reader, writer = await connect(address)
                answer = asyncio.create_task(reader.read(12))
                writer.write(sent)
                for byte in rest:
                    await asyncio.wait([answer], timeout=0.05)
                    if answer.done():
                        break
                    writer.write(bytes([byte]))
                return await answer

            silent, headers, body = await asyncio.gather(
                drip(b"", b""), drip(whole[:1], whole[1:60]), drip(whole[:-50], whole[-50:])
            )
            assert (silent, headers, body) == (b"", b"", b"HTTP/1.1 408")
            assert time.perf_counter() - started < 30

    run(main)


def test_a_client_that_reads_nothing_meets_a_deadline():
    class Long(Recording):
        async def chat(self, *arguments, **keywords):
            reply = await super().chat(*arguments, **keywords)
            return replace(reply, message={**reply.message, "content": "x" * 20_000_000})

    model = Long(Script("5"))

    async def main():
        async with serving(model, timeout=0.3) as (_, [address]):
            _, writer = await connect(address)
            writer.write(raw(address, body=json.dumps({**BODY, "stream": True}).encode()))
            before = asyncio.all_tasks()
            while not model.nodes:
                await asyncio.sleep(0.01)
            started = time.perf_counter()
            while any(task not in before for task in asyncio.all_tasks() if task is not asyncio.current_task()):
                await asyncio.sleep(0.05)
                assert time.perf_counter() - started < 30
            writer.close()

    run(main)


def test_a_thousand_connections_leave_the_endpoint_working():
    model = Recording(Script("5"))

    async def main():
        async with serving(model) as (_, [address]):
            opened = [await connect(address) for _ in range(1000)]
            for _, writer in opened[:500]:
                writer.write(b"POST / HTTP/1.1\r\n")
            await post(address, CHAT, BODY)
            for _, writer in opened[:500]:
                writer.transport.abort()
            await asyncio.gather(*(post(address, CHAT, BODY) for _ in range(50)))
            for _, writer in opened[500:]:
                writer.close()

    run(main)
    assert len(model.nodes) == 51


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/chat/completions", 404),
        ("DELETE", "/chat/completions", 405),
        ("POST", "/completions", 404),
        ("POST", "/../../etc/passwd", 404),
        ("GET", "/models/other", 404),
        ("GET", "/models/tiny", 200),
    ],
)
def test_other_paths_and_methods_are_errors(method, path, status):
    async def main():
        async with (
            serving(Recording(Script("5"))) as (_, [address]),
            client(address) as session,
            session.request(method, address.base_url + path, json=BODY) as response,
        ):
            return response.status

    assert run(main) == status


def test_no_key_is_logged_or_shown(caplog, capsys):
    caplog.set_level(logging.DEBUG)

    async def main():
        async with serving(Recording(Script("5"))) as (endpoint, [address]):
            await post(address, CHAT, BODY)
            await post(Address(address.base_url, "wrong-key"), CHAT, BODY, 401)
            reader, writer = await connect(address)
            writer.write(raw(address, Authorization=f"Bearer {address.api_key}\x00"))
            assert (await reader.readline()).startswith(b"HTTP/1.0 400 ")
            writer.close()
            return repr(address), repr(vars(endpoint)), address.api_key

    shown, inside, key = run(main)
    assert key not in shown + inside + caplog.text + "".join(capsys.readouterr())
    assert "wrong-key" not in caplog.text


def test_keys_are_random_and_long():
    async def main():
        async with serving(*(Recording(Script("5")) for _ in range(100))) as (_, addresses):
            return addresses

    addresses = run(main)
    assert len({each.api_key for each in addresses}) == len({each.base_url for each in addresses}) == 100
    assert min(len(each.api_key.removeprefix("sk-corerl-")) for each in addresses) == 43  # 256 bits in base 64


def test_an_ended_episode_leaves_nothing_behind():
    async def main():
        async with serving() as (endpoint, _):
            model = Recording(Script("5"))
            address = endpoint.open(model)
            await post(address, CHAT, BODY)
            endpoint.shut(address)
            gone = weakref.ref(model)
            del model
            await asyncio.sleep(0.01)
            gc.collect()
            return gone()

    assert run(main) is None
