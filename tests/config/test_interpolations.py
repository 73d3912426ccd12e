"""Configs of strangers: interpolations that would fill any memory, YAML that recurses, variables that hold keys."""

from pathlib import Path
from typing import Any

import pytest

from corerl.cli.main import run
from corerl.config import typed
from corerl.config.interpolations import LONGEST, check_length
from corerl.config.load import read
from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError


def chain(levels: int, width: int, *, lists: bool = False) -> dict[str, Any]:
    """``a1`` names ``a0`` so many times, ``a2`` names ``a1``, and so on."""
    options: dict[str, Any] = {"a0": "x" * 10}
    for number in range(1, levels):
        named = [f"${{rollout.options.a{number - 1}}}"] * width
        options[f"a{number}"] = named if lists else "".join(named)
    return {"model": {"path": "m"}, "rollout": {"options": options}}


@pytest.mark.parametrize("lists", [False, True])
def test_interpolations_that_grow_at_each_level_are_refused_before_they_are_resolved(lists: bool) -> None:
    with pytest.raises(ConfigError, match=rf"^rollout\.options\.a\d.*more than {LONGEST:,} characters"):
        typed.build(TrainConfig, chain(40, 10, lists=lists))


@pytest.mark.parametrize(
    "value",
    [
        "${.a0}${.a0}",
        "${rollout.options.a0}",
        "${oc.select:rollout.options.a0}",
        "${..options.a0}",
        "${oc.env:NONE,${.a0}}",
    ],
)
def test_each_way_of_naming_a_value_counts(value: str) -> None:
    options = {"a0": "x" * LONGEST, "a1": value}
    with pytest.raises(ConfigError, match=r"rollout\.options\.a1: comes to more than"):
        check_length({"rollout": {"options": options}})


def test_a_name_that_another_interpolation_makes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a: has an interpolation within an interpolation"):
        check_length({"a": "${${b}}", "b": "c", "c": 1})


def test_a_circle_and_plain_interpolations_are_left_to_omegaconf() -> None:
    check_length({"a": "${a}", "b": "${c}${c}", "c": "d" * 100, "e": "${oc.env:HOME,${c}}"})
    built = typed.build(TrainConfig, {"model": {"path": "m", "tokenizer_path": "${model.path}"}})
    assert built.model.tokenizer_path == "m"


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(" " * depth + "a:" for depth in range(3000)),
        "- " * 5000 + "x",
        "? " * 3000 + "x",
        'model: {path: "' + "\\x24\\x7ba:" * 3000 + '"}',
        "model: {path: m, lora_rank: " + "9" * 5000 + "}",
        "model: {path: m, lora_rank: 0x" + "f" * 5000 + "}",
        "model: {path: m, lora_rank: 1" + ":59" * 5000 + "}",
    ],
    ids=["sections", "lists", "keys", "interpolations", "digits", "hexadecimal", "sexagesimal"],
)
@pytest.mark.parametrize("command", [["config", "show"], ["check"]])
def test_yaml_that_recurses_and_numbers_without_end_are_one_line(
    tmp_path: Path, text: str, command: list[str], capsys: Any
) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text(text)
    assert run([*command, str(file)]) == 2
    said = capsys.readouterr()
    assert "Traceback" not in said.err and "this is a bug" not in said.err
    if command == ["config", "show"]:
        assert said.err.startswith("error: ") and said.err.count("\n") == 1


def test_a_long_number_in_an_override_is_one_error() -> None:
    with pytest.raises(ConfigError, match="an integer of 20,000 bits"):
        read(TrainConfig, None, ["model.lora_rank=0x" + "f" * 5000])


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PGPASSWORD", "MYSQL_PWD", "GITHUB_PAT"])
def test_no_variable_that_holds_a_key_is_shown(name: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv(name, "hush-hush")
    file = tmp_path / "theirs.yaml"
    file.write_text(f"model: {{path: '${{oc.env:{name}}}'}}")
    assert run(["config", "show", str(file)]) == 2
    assert run(["check", str(file)]) == 2
    said = capsys.readouterr()
    assert "hush-hush" not in said.out + said.err and f"{name} looks like a secret" in said.err


def test_no_key_is_shown_that_another_variable_holds(monkeypatch: Any) -> None:
    monkeypatch.setenv("HARMLESS", "hf_abcdefghijklmnopqrstuvwx")
    with pytest.raises(ConfigError, match="HARMLESS looks like a secret") as raised:
        typed.build(TrainConfig, {"model": {"path": "${oc.env:HARMLESS}"}})
    assert "hf_abc" not in str(raised.value)


def test_other_variables_have_their_value_or_the_default(monkeypatch: Any) -> None:
    monkeypatch.setenv("MODELS", "/models")
    monkeypatch.delenv("NO_SUCH", raising=False)
    model = {"path": "${oc.env:MODELS}/a", "tokenizer_path": "${oc.env:NO_SUCH,b}"}
    built = typed.build(TrainConfig, {"model": model}).model
    assert (built.path, built.tokenizer_path) == ("/models/a", "b")
    with pytest.raises(ConfigError, match="NO_SUCH"):
        typed.build(TrainConfig, {"model": {"path": "${oc.env:NO_SUCH}"}})
