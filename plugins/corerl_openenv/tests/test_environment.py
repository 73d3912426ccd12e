"""Episodes on servers: one of a few lines that speaks the protocol, and one of the library OpenEnv itself."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import textwrap
import time
import urllib.request
from http import HTTPStatus

import pytest

pytest.importorskip("websockets", reason="pip install websockets")

from websockets.asyncio.server import serve
from websockets.datastructures import Headers
from websockets.http11 import Response

from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.errors import ConfigError
from corerl_envs import Task
from corerl_openenv.actions import parse_action
from corerl_openenv.environment import OpenEnvEnvironment
from corerl_openenv.options import OpenEnvOptions
from corerl_openenv.session import ServerError, read_answer

SCHEMA = {"title": "GuessAction", "properties": {"guess": {"type": "integer"}, "metadata": {}}, "required": ["guess"]}


class Guess:
    """The protocol's server side: a number from 1 to 9, which is the seed's last digit."""

    def __init__(self, schema=SCHEMA):
        self.schema, self.resets, self.headers, self.sessions = schema, [], [], 0

    def page(self, connection, request):
        self.headers.append(request.headers.get("Authorization"))
        if request.path == "/schema":
            body = json.dumps({"action": self.schema}).encode()
            headers = Headers({"Content-Length": str(len(body)), "Connection": "close"})
            return Response(HTTPStatus.OK.value, "OK", headers, body)
        return None

    async def session(self, connection):
        self.sessions += 1
        with contextlib.suppress(Exception):
            async for text in connection:
                message = json.loads(text)
                if message["type"] == "close":
                    break
                await connection.send(json.dumps(self.answer(message["type"], message.get("data", {}))))
        self.sessions -= 1

    def answer(self, kind, data):
        if kind == "reset":
            self.resets.append(data)
            return self.observation("Guess a number from 1 to 9.")
        if data.get("type") == "list_tools":
            return {"type": "observation", "data": {"observation": {"tools": [{"name": "add"}]}, "reward": None}}
        if data.get("type") == "call_tool":
            return self.observation(f"called {data['tool_name']}", 0.5, done=True)
        if not isinstance(data.get("guess"), int):
            return {"type": "error", "data": {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": []}}
        if data["guess"] == 0:
            return {"type": "error", "data": {"message": "the game is broken", "code": "EXECUTION_ERROR"}}
        right = data["guess"] == self.resets[-1]["seed"] % 10
        return self.observation("right" if right else "wrong", float(right), done=right)

    @staticmethod
    def observation(text, reward=None, done=False):
        return {"type": "observation", "data": {"observation": {"text": text}, "reward": reward, "done": done}}


@contextlib.asynccontextmanager
async def served(guess, **options):
    async with serve(guess.session, "127.0.0.1", 0, process_request=guess.page) as server:
        port = server.sockets[0].getsockname()[1]
        given = OpenEnvOptions(f"http://127.0.0.1:{port}", observation="text", timeout=5.0, **options)
        yield await asyncio.to_thread(OpenEnvEnvironment, options=given)


def task(**extra_info):
    return Task([{"role": "user", "content": "A game."}], "", "acme", extra_info)


def play(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def test_an_episode_is_a_session_of_the_server():
    async def episode():
        guess = Guess()
        async with served(guess, reset={"level": 2}) as environment:
            start = await environment.reset(task(reset={"mode": "easy"}), 12345)
            [message] = start.messages
            assert message["content"].startswith(
                "A game.\n\nGuess a number from 1 to 9.\n\nAn action is one JSON object"
            )
            assert '"guess": {"type": "integer"}' in message["content"] and "metadata" not in message["content"]
            wrong = await environment.step(start.state, "3")
            right = await environment.step(start.state, 'I guess:\n```json\n{"guess": 5}\n```')
            assert guess.sessions == 1
            await environment.end(start.state)
            await asyncio.sleep(0.05)
            assert guess.sessions == 0
        assert guess.resets == [{"level": 2, "mode": "easy", "seed": 12345}]
        assert (wrong.messages[0]["content"], wrong.reward, wrong.done) == ("wrong", 0.0, False)
        assert (right.reward, right.done, right.tool_calls, right.tool_errors) == (1.0, True, 1, 0)

    play(episode())


def test_faults_of_the_policy_are_answered_and_those_of_the_server_raise():
    async def episode():
        async with served(Guess(), invalid_penalty=0.25) as environment:
            start = await environment.reset(task(), 5)
            invalid = await environment.step(start.state, '{"guess": "five"}')
            assert (invalid.reward, invalid.tool_errors, invalid.done) == (-0.25, 1, False)
            assert "Invalid message" in invalid.messages[0]["content"]
            with pytest.raises(ServerError, match="the game is broken"):
                await environment.step(start.state, "0")
        async with served(Guess(), execution_errors="policy") as environment:
            start = await environment.reset(task(), 5)
            broken = await environment.step(start.state, "0")
            assert broken.tool_errors == 1 and "the game is broken" in broken.messages[0]["content"]

    play(episode())


def test_a_server_of_tools_names_them():
    async def episode():
        async with served(Guess({"title": "Action", "properties": {}})) as environment:
            start = await environment.reset(task(), 5)
            assert (
                "CallToolAction" not in start.messages[0]["content"] and '"tool_name"' in start.messages[0]["content"]
            )
            assert start.messages[0]["content"].endswith('The tools:\n[{"name": "add"}]')
            turn = await environment.step(start.state, '{"tool_name": "add", "arguments": {"a": 1}}')
            assert (turn.messages[0]["content"], turn.reward, turn.done) == ("called add", 0.5, True)

    play(episode())


def test_keys_of_headers_come_from_the_environment(monkeypatch):
    async def episode():
        guess = Guess()
        async with served(guess, headers={"Authorization": "Bearer ${env:OPENENV_TEST}"}) as environment:
            await environment.reset(task(), 5)
        assert guess.headers == ["Bearer value"] * 2

    monkeypatch.setenv("OPENENV_TEST", "value")
    play(episode())


def test_episodes_at_once_have_sessions_of_their_own():
    async def one(environment, seed):
        start = await environment.reset(task(), seed)
        turn = await environment.step(start.state, "9")
        await environment.end(start.state)
        return turn.messages[0]["content"]

    async def episodes():
        async with served(Guess()) as environment:
            assert await asyncio.gather(*(one(environment, 9) for _ in range(20))) == ["right"] * 20

    play(episodes())


def test_a_server_that_is_not_there_is_named_before_the_run():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ConfigError, match="no OpenEnv server answers"):
        OpenEnvEnvironment(options=OpenEnvOptions(url))


def test_a_server_that_falls_silent_ends_the_episode():
    class Silent(Guess):
        async def session(self, connection):
            await asyncio.sleep(0.8)

    async def episode():
        async with served(Silent()) as environment:
            environment._options = OpenEnvOptions(environment._options.url, timeout=0.3)
            with pytest.raises(ServerError, match=r"did not answer 'reset' within 0\.3 s"):
                await environment.reset(task(), 5)

    play(episode())


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[" * 100_000, "no message of OpenEnv's protocol"),
        ("3", "no message of OpenEnv's protocol"),
        ('{"type": "state", "data": {}}', "answered 'state', not an observation"),
        ('{"type": "observation", "data": {"observation": []}}', "another shape"),
        ('{"type": "observation", "data": {"observation": {}, "reward": "1"}}', "another shape"),
        ('{"type": "observation", "data": {"observation": {}, "reward": NaN}}', "reward is nan"),
    ],
)
def test_answers_outside_the_protocol_are_errors(text, error):
    with pytest.raises(ServerError, match=error):
        read_answer(text)


def test_actions_are_json_or_the_text_of_their_one_field():
    text = {"properties": {"message": {"type": "string"}}, "required": ["message"]}
    assert parse_action("12", text) == {"message": "12"}
    assert parse_action('{"message": "hi"}', text) == {"message": "hi"}
    with pytest.raises(ValueError, match="an action is a JSON object"):
        parse_action("up", {"properties": {"x": {}, "y": {}}, "required": ["x", "y"]})


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://"])
def test_an_address_without_a_host_is_refused(url):
    with pytest.raises(ConfigError, match="should be an address"):
        OpenEnvOptions(url).check("rollout.multi_turn.environment", TrainConfig(ModelConfig("tiny")))


SERVER = """
    import sys, uvicorn
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Echo(Action):
        message: str

    class Heard(Observation):
        text: str = ""

    class EchoEnvironment(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True
        def __init__(self): self.count = 0
        def reset(self, seed=None):
            self.count = 0
            return Heard(text=f"seed {seed}")
        def step(self, action):
            self.count += 1
            return Heard(text=action.message.upper(), reward=0.5, done=self.count == 2)
        @property
        def state(self): return State(step_count=self.count)

    app = create_fastapi_app(EchoEnvironment, Echo, Heard, max_concurrent_envs=8)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
"""


def test_a_server_of_the_library_plays(tmp_path):
    python = os.environ.get("CORERL_OPENENV_PYTHON")
    if not python:
        pytest.skip("CORERL_OPENENV_PYTHON names no Python with openenv-core")
    (tmp_path / "server.py").write_text(textwrap.dedent(SERVER))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([python, str(tmp_path / "server.py"), str(port)], start_new_session=True)
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                break
            time.sleep(0.2)

        async def episode():
            given = OpenEnvOptions(f"http://127.0.0.1:{port}", observation="text")
            environment = await asyncio.to_thread(OpenEnvEnvironment, options=given)
            starts = await asyncio.gather(*(environment.reset(task(), seed) for seed in (1, 2)))
            assert ["seed 1" in starts[0].messages[0]["content"], "seed 2" in starts[1].messages[0]["content"]] == [
                True
            ] * 2
            first = await environment.step(starts[0].state, "hello")
            invalid = await environment.step(starts[0].state, '{"massage": "x"}')
            last = await environment.step(starts[0].state, '{"message": "bye"}')
            assert (first.messages[0]["content"], first.reward, first.done) == ("HELLO", 0.5, False)
            assert invalid.tool_errors == 1 and (last.messages[0]["content"], last.done) == ("BYE", True)
            for start in starts:
                await environment.end(start.state)

        play(episode())
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
