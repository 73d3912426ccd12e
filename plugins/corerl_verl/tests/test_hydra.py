"""Hydra's command line and its values."""

from typing import Any

import pytest

from corerl.errors import ConfigError
from corerl_verl import hydra


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1),
        ("1e-6", 1e-6),
        ("0.", 0.0),
        ("1_000", 1000),
        ("True", True),
        ("null", None),
        ("'1'", "1"),
        ("a=b", "a=b"),
        ("/p/q r", "/p/q r"),
        ("0.5_2.0", "0.5_2.0"),
        ("[]", []),
        ("['a.b', c]", ["a.b", "c"]),
        ('["console","wandb"]', ["console", "wandb"]),
        ("[console,[1,2]]", ["console", [1, 2]]),
        ("{a:1,b:{c:True}}", {"a": 1, "b": {"c": True}}),
        ("{a: [1, x]}", {"a": [1, "x"]}),
        ("${trainer.x}", "${trainer.x}"),
        ("", ""),
    ],
)
def test_values(text: str, expected: Any) -> None:
    assert hydra.value(text) == expected


@pytest.mark.parametrize("text", ["[1,2", "{a:1", "'x", "[1 2]]["])
def test_open_brackets_and_quotes(text: str) -> None:
    if text == "[1 2]][":
        assert hydra.value(text) == text
    else:
        with pytest.raises(ConfigError, match="open quote or bracket"):
            hydra.value(text, "a.b")


def test_signs_options_and_groups() -> None:
    options = ["--config-path=c", "--config-name", "ppo.yaml", "hydra.run.dir=.", "--multirun"]
    groups = ["model_engine=megatron", "actor@actor_rollout_ref.actor=megatron_actor"]
    parsed = hydra.parse([*options, "+a.b=1", "++c.d=2", "~e.f", *groups, "a.b=3"])
    assert (parsed.path, parsed.name) == ("c", "ppo")
    assert parsed.values == {"c.d": 2, "a.b": 3}
    assert (parsed.added, parsed.deleted) == ({"a.b", "c.d"}, ["e.f"])
    assert parsed.groups == {"model_engine": "megatron", "actor@actor_rollout_ref.actor": "megatron_actor"}
    assert parsed.ignored == ["hydra.run.dir=.", "--multirun"]


def test_the_last_value_of_a_key_wins_and_another_form_is_refused() -> None:
    assert hydra.parse(["a.b=1", "a.b=2"]).values == {"a.b": 2}
    with pytest.raises(ConfigError, match=r"'a\.b' is not an override"):
        hydra.parse(["a.b"])


def test_yaml_becomes_flat_keys() -> None:
    text = "defaults: [x]\nhydra: {a: 1}\ndata: {seed: 1, m: {}}\nalgorithm: {_target_: T, lam: 1e-2}\n"
    assert hydra.from_yaml(text, "f") == {"data.seed": 1, "data.m": {}, "algorithm.lam": 0.01}
    with pytest.raises(ConfigError, match="f: must be a mapping"):
        hydra.from_yaml("[1]", "f")


@pytest.mark.parametrize("text", ["1,2", "vllm,sglang", "choice(4,8)", "range(1,4)", "a, b"])
def test_a_sweep_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"a\.b: '.*' is a sweep of Hydra: several trainings; write one value"):
        hydra.parse([f"a.b={text}", "--multirun"])


@pytest.mark.parametrize("text", ["[1,2]", "'1,2'", "{a:1,b:2}", r"a\,b", "$(echo a,b)", "f(x)", "[$(tr ' ' ','),b]"])
def test_other_commas_are_none(text: str) -> None:
    hydra.parse([f"a.b={text}"])


def test_bombs_are_texts_or_refused() -> None:
    assert hydra.value("9" * 5000) == "9" * 5000
    with pytest.raises(ConfigError, match="too many brackets within each other"):
        hydra.value("[" * 100_000)
    with pytest.raises(ConfigError, match="f: not valid YAML"):
        hydra.from_yaml(f"a: {'9' * 5000}", "f")
