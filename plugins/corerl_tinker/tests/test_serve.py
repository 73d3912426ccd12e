"""``corerl serve --tinker``: a random key printed once, options of the service, a clean end."""

import json
import re
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner
from tinker_toys import Refused, send

from corerl.errors import ConfigError, RequestError
from corerl.plugins import load_plugins
from corerl_gateway.serve import serve
from corerl_gateway.services import ServeRequest, split_options
from corerl_testing.tiny_model import tiny_model
from corerl_tinker.options import TinkerOptions
from corerl_tinker.serving import plan


def test_a_server_prints_its_key_once_serves_and_ends(tmp_path):
    command = [sys.executable, "-m", "corerl", "serve", "--tinker", str(tiny_model()), "--port", "0"]
    more = ["actor.device=cpu", f"tinker.folder={tmp_path}", "model.lora_rank=8"]
    process = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        line = process.stdout.readline()
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
        ({"rollout": {"lora": "adapter", "name": "sglang"}}, "rollout.lora"),
        ({"model": {"lora_dora": True}}, "model.lora_dora"),
        ({"model": {"dtype": "fp16"}}, "model.dtype: fp16 needs a loss scale"),
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
