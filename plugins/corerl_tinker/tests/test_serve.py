"""``corerl serve --tinker``: a random key printed once, options of the service, a clean end."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest
from click.testing import CliRunner
from tinker_toys import KEYS, Client, Refused, datum, send

from corerl.errors import ConfigError, RequestError
from corerl.plugins import load_plugins
from corerl_gateway.serve import serve
from corerl_gateway.services import ServeRequest, split_options
from corerl_testing.tiny_model import tiny_model
from corerl_tinker import serving
from corerl_tinker.options import TinkerOptions
from corerl_tinker.serving import plan


def test_a_server_prints_its_key_once_serves_and_ends(tmp_path):
    command = [sys.executable, "-m", "corerl", "serve", "--tinker", str(tiny_model()), "--port", "0"]
    more = ["actor.device=cpu", f"tinker.folder={tmp_path}", "model.lora_rank=8"]
    process = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        line = next((each for each in process.stdout if not each.startswith("working (")), "")
        found = re.search(
            r"adapters of rank 8: TINKER_BASE_URL=(http://127\.0\.0\.1:\d+) TINKER_API_KEY=(tml-\S+);", line
        )
        assert found, line
        assert json.loads(send(found[1], found[2], "healthz", None, "GET")[1]) == {"status": "ok"}
        with pytest.raises(Refused):
            send(found[1], found[2] + "x", "healthz", None, "GET")
    finally:
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and printed.endswith("stopped\n") and found[2] not in printed


def test_a_signal_ends_a_start_that_takes_long(tmp_path, monkeypatch, capsys):
    """After the time that a computation under way has at the end."""
    began, released = threading.Event(), threading.Event()

    def build(*parts):
        began.set()
        released.wait(60)

    monkeypatch.setattr(serving, "build", build)
    killer = threading.Thread(target=lambda: (began.wait(60), os.kill(os.getpid(), signal.SIGINT)))
    killer.start()
    values = {"actor": {"device": "cpu"}}
    try:
        serving.run(plan(asked(**values), TinkerOptions(folder=str(tmp_path), stop_timeout=0.2)))
    finally:
        released.set()
        killer.join()
    printed = capsys.readouterr().out
    assert "the start has 0.2 s to end" in printed and "given up" in printed and printed.endswith("stopped\n")


def test_the_flag_is_that_of_the_installed_service():
    printed = CliRunner().invoke(serve, ["--help"]).output
    assert "--tinker" in printed and "Tinker's API" in printed
    assert split_options("tinker", ["tinker.max_models=2", "a.b=c"]) == ({"max_models": 2}, ["a.b=c"])


def asked(**values):
    values["model"] = {"path": str(tiny_model()), **values.get("model", {})}
    return ServeRequest(values, load_plugins(), None, 0, None)


def test_adapters_are_the_default_and_all_weights_a_choice():
    assert plan(asked(), TinkerOptions()).config.model.lora_rank == 32
    assert plan(asked(model={"lora_rank": 0}), TinkerOptions()).config.model.lora_rank == 0


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"model": {"lora_dora": True}}, "model.lora_dora"),
        ({"model": {"dtype": "fp16"}}, "model.dtype: fp16 needs a loss scale"),
        ({"actor": {"optim": {"optimizer": "muon"}}}, "actor.optim.optimizer: is not what clients of Tinker step with"),
        ({"actor": {"strategy": "magic"}}, "magic"),
        ({"x": 1}, "x"),
    ],
)
def test_a_wrong_config_is_refused_before_a_model_is_loaded(values, error):
    with pytest.raises((ConfigError, RequestError), match=error):
        plan(asked(**values), TinkerOptions())


def test_unknown_options_of_the_service_are_named():
    with pytest.raises(ConfigError, match=r"tinker\.max_model"):
        load_plugins().registries.services.select_named(
            "tinker", {"max_model": 1}, name_key="--tinker", options_key="tinker"
        )


@contextlib.contextmanager
def served(folder):
    """The address of a server with a key of its own, in a process that is killed at the end."""
    command = [sys.executable, "-m", "corerl", "serve", "--tinker", str(tiny_model()), "--port", "0"]
    more = ["--api-key-env", "KEY", "actor.device=cpu", f"tinker.folder={folder}", "model.lora_rank=8"]
    environment = {**os.environ, "KEY": KEYS[0]}
    process = subprocess.Popen(
        [*command, *more], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    try:
        line = process.stdout.readline()
        yield re.search(r"TINKER_BASE_URL=(http://127\.0\.0\.1:\d+)", line)[1]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="kills servers: set CORERL_CHAOS=1")
def test_a_client_goes_on_from_its_saved_weights_after_the_server_was_killed(tmp_path):
    def step(client, model):
        loss = client.loss(client.backward(model, datum(), datum(range(60, 90))))
        client.result(client.step(model))
        return loss

    with served(tmp_path) as url:
        client = Client(url, KEYS[0])
        model = client.create(str(tiny_model()))
        step(client, model)
        saved = client.result(client.call("save_weights", model, path="a"))["path"]
        wanted = [step(client, model) for _ in range(3)]
        client.call("save_weights", model, path="b")
        for _ in range(5):  # killed in the middle
            client.backward(model, datum(range(200)))
    with served(tmp_path) as url:
        client.url = url
        for attempt, status in (
            (lambda: client.backward(model, datum()), 404),
            (lambda: client.post("session_heartbeat", session_id=client.session), 410),
            (lambda: client.result({"request_id": f"{model}:1"}), 404),
        ):
            with pytest.raises(Refused) as caught:
                attempt()
            assert caught.value.status == status
        again = Client(url, KEYS[0])
        made = again.post("load_weights", session_id=again.session, model_seq_id=0, path=saved, optimizer=True)
        model = again.result(made)["model_id"]
        again.seqs[model] = 0
        assert [step(again, model) for _ in range(3)] == wanted
