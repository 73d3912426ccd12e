"""The example with a game, in a short form: real trainings against a server of the protocol, and one of the library."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from http import HTTPStatus
from pathlib import Path

import pytest

pytest.importorskip("websockets", reason="pip install websockets")

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Response
from websockets.sync.server import serve

from corerl.cli.main import run

EXAMPLE = Path(__file__).parents[3] / "examples" / "agents-openenv"
LIBRARY = os.environ.get("CORERL_OPENENV_PYTHON", "")
SHORT = ["trainer.total_training_steps=2", "trainer.val_before_train=false", "trainer.test_freq=-1"]
SHORT += ["data.train_batch_size=2", "rollout.n=2", "actor.ppo_mini_batch_size=2"]
SHAPE = ["--vocab-size=300", "--hidden-size=32", "--layers=1", "--heads=2", "--kv-heads=2", "--intermediate-size=64"]


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """The overrides of a random model and the example's data."""
    monkeypatch.chdir(EXAMPLE.parents[1])
    data, model = tmp_path / "data", tmp_path / "model"
    subprocess.run([sys.executable, EXAMPLE / "data.py", data], check=True, timeout=120)
    corpus = f"--corpus={data}/sft.parquet"
    assert run(["tiny-model", f"--out={model}", corpus, *SHAPE, "--max-positions=128"]) == 0
    files = [f"data.train_files=[{data}/train.parquet]", f"data.val_files=[{data}/test.parquet]"]
    return [f"model.path={model}", *files, f"trainer.output_dir={tmp_path}/run", *SHORT]


@pytest.fixture
def url(monkeypatch):
    """The game of the example on a server of a few lines."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from game import Game

    def observation(text, reward=None, done=False):
        return json.dumps(
            {"type": "observation", "data": {"observation": {"text": text}, "reward": reward, "done": done}}
        )

    def session(connection):
        game = None
        with contextlib.suppress(ConnectionClosed):
            for text in connection:
                message = json.loads(text)
                if message["type"] == "reset":
                    game = Game(message["data"]["seed"])
                    connection.send(observation("guess"))
                elif message["type"] == "step" and isinstance(message["data"].get("number"), int):
                    connection.send(observation(*game.guess(message["data"]["number"])))
                elif message["type"] == "step":
                    error = {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": []}
                    connection.send(json.dumps({"type": "error", "data": error}))
                else:
                    break

    def page(connection, request):
        if request.path != "/schema":
            return None
        action = {"title": "Guess", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
        body = json.dumps({"action": action}).encode()
        headers = Headers({"Content-Length": str(len(body)), "Connection": "close"})
        return Response(HTTPStatus.OK.value, "OK", headers, body)

    with serve(session, "127.0.0.1", 0, process_request=page) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join(10)


def metrics(folder):
    [log] = folder.glob("run/**/metrics.jsonl")
    return json.loads(log.read_text().splitlines()[-1])


def test_the_example_trains(parts, url, tmp_path):
    address = f"rollout.multi_turn.environment.url={url}"
    assert run(["train", str(EXAMPLE / "config.yaml"), *parts, address]) == 0
    last = metrics(tmp_path)
    assert last["env/failed/ratio"] == 0.0 and last["env/turns/mean"] >= 1.0


def test_the_cold_start_has_the_words_of_the_game(parts, tmp_path, monkeypatch):
    from corerl.data import read_parquet

    monkeypatch.syspath_prepend(str(EXAMPLE))
    from game import GUESSES

    for _, row in read_parquet(str(tmp_path / "data" / "sft.parquet"), ["messages"]):
        first, *rest = row["messages"]
        assert first["content"] == "game\n\nguess" and len(rest) <= 2 * GUESSES - 1
        assert {each["content"] for each in rest if each["role"] == "user"} <= {"higher", "lower"}


@pytest.mark.slow
@pytest.mark.skipif(not LIBRARY, reason="CORERL_OPENENV_PYTHON names no Python with openenv-core")
def test_the_script_with_a_server_of_the_library(parts, tmp_path):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"OPENENV_PYTHON": LIBRARY, "PATH": path}
    line = ["sh", EXAMPLE / "run.sh", *parts]
    subprocess.run(line, env=environment, cwd=EXAMPLE.parents[1], check=True, timeout=600)
    assert metrics(tmp_path)["env/failed/ratio"] == 0.0
