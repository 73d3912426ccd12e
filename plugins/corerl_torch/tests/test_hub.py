import os
import socket
from collections.abc import Iterator

import pytest
from huggingface_hub import constants

from corerl.contracts.config import ModelConfig
from corerl.errors import ModelError
from corerl_check.hub import look_for_hub
from corerl_torch.tokenizers import load_tokenizer


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Stands for the hub; it takes connections once it listens."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    look_for_hub.cache_clear()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield server
    look_for_hub.cache_clear()


def test_a_hub_that_answers_is_left_alone(endpoint: socket.socket, capsys: pytest.CaptureFixture[str]) -> None:
    endpoint.listen()
    look_for_hub()
    assert not constants.HF_HUB_OFFLINE
    assert capsys.readouterr().err == ""


def test_without_a_hub_a_wrong_name_is_one_line_at_once(
    endpoint: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        with pytest.raises(ModelError, match="is no folder here and cannot be had from the hub"):
            load_tokenizer(ModelConfig(path="owner/model"))
    assert constants.HF_HUB_OFFLINE
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{constants.ENDPOINT} does not answer (")


def test_behind_a_proxy_nothing_is_asked(endpoint: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    look_for_hub()
    assert not constants.HF_HUB_OFFLINE
