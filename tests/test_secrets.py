"""Secrets are named in a config and never written."""

from pathlib import Path
from typing import Any

import pytest

from corerl.config import typed
from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError
from corerl.secrets import is_secret_name, plain_secrets, reveal


def test_a_reference_stays_in_the_config_and_its_value_is_read_where_it_is_used(monkeypatch: Any) -> None:
    monkeypatch.setenv("JUDGE_KEY", "hush-hush")
    manager = {"name": "judge", "headers": {"Authorization": "Bearer ${env:JUDGE_KEY}"}}
    config = typed.build(TrainConfig, {"model": {"path": "m"}, "reward": {"manager": manager}})
    assert config.reward.manager == manager
    assert reveal(manager["headers"]["Authorization"]) == "Bearer hush-hush"  # type: ignore[index]
    assert reveal("plain ${oc.env:HOME}") == "plain ${oc.env:HOME}"


def test_a_variable_that_is_not_set_is_named(monkeypatch: Any) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="NO_SUCH_KEY is not set"):
        reveal("Bearer ${env:NO_SUCH_KEY}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Authorization", "Bearer 0123456789abcdef"),
        ("Authorization", "anything"),
        ("x-api-key", "0123"),
        ("api_key", "0123"),
        ("password", "correct horse"),
        ("WANDB_API_KEY", "0123"),
        ("AWS_SECRET_ACCESS_KEY", "0123"),
        ("HF_TOKEN", "0123"),
        ("anything", "sk-proj-0123456789abcdefghij"),
        ("anything", "hf_abcdefghijklmnopqrstuvwx"),
        ("anything", "AKIAABCDEFGHIJKLMNOP"),
        ("base_url", "https://me:hunter22@example.test/v1"),
        ("anything", ["fine", "ghp_abcdefghijklmnopqrstuvwx"]),
        ("anything", "Bearer ${env:A} sk-proj-0123456789abcdefghij"),
    ],
)
def test_what_looks_like_a_secret_is_named_and_not_shown(key: str, value: Any) -> None:
    [error] = plain_secrets({"reward": {"manager": {key: value}}})
    assert error.key == f"reward.manager.{key}" and "${env:NAME}" in str(error)
    shown = value if isinstance(value, str) else value[-1]
    assert shown not in str(error)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Authorization", "Bearer ${env:KEY}"),
        ("token_variable", "HF_TOKEN"),
        ("eos_token", "<|im_end|>"),
        ("stop_tokens", "a"),
        ("max_tokens", 5),
        ("token", None),
        ("path", "Qwen/Qwen2.5-0.5B-Instruct"),
        ("prompt", "Grade the bearer of this answer, then say Score: 3."),
        ("base_url", "http://localhost:8000/v1"),
        ("tracking_uri", "sqlite:///mlflow.db"),
        ("keys", "sk-"),
    ],
)
def test_what_is_no_secret_is_let_pass(key: str, value: Any) -> None:
    assert list(plain_secrets({key: value})) == []


def test_the_schema_itself_holds_nothing_that_looks_like_a_secret() -> None:
    assert list(plain_secrets(typed.fill(TrainConfig, {"model": {"path": "m"}}))) == []


def test_names_of_token_ids_are_no_secrets() -> None:
    assert not any(map(is_secret_name, ("eos_token", "image_token", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM")))


def test_examples_hold_nothing_that_looks_like_a_secret() -> None:
    yaml = pytest.importorskip("yaml")
    files = list((Path(__file__).parents[1] / "examples").rglob("*.yaml"))
    assert len(files) > 3
    for file in files:
        assert list(plain_secrets(yaml.safe_load(file.read_text()) or {})) == [], file
