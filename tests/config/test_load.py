"""YAML files and overrides."""

import re
from pathlib import Path

import pytest

from corerl.config.load import load, read
from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError


@pytest.fixture
def write(tmp_path: Path) -> Path:
    return tmp_path / "c.yaml"


def test_overrides_go_over_the_file_and_the_file_over_the_defaults(write: Path) -> None:
    write.write_text("model: {path: tiny}\nrollout: {n: 4, temperature: 0.5}\nactor: {optim: {lr: 1e-4}}\n")
    config = load(TrainConfig, write, ["rollout.n=6", "rollout.val_kwargs.n=2"])
    assert (config.rollout.n, config.rollout.temperature, config.rollout.val_kwargs.n) == (6, 0.5, 2)
    assert (config.actor.optim.lr, config.actor.grad_clip) == (1e-4, 1.0)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("data.train_files=[a.parquet,b.parquet]", ["a.parquet", "b.parquet"]),
        ("data.train_files=[]", []),
        ("data.train_files=['a=b.parquet']", ["a=b.parquet"]),
    ],
)
def test_a_list_is_written_in_yaml_and_replaces_what_was_there(write: Path, override: str, value: list[str]) -> None:
    write.write_text("model: {path: tiny}\ndata: {train_files: [x, y, z]}\n")
    assert load(TrainConfig, write, [override]).data.train_files == value


@pytest.mark.parametrize(
    ("text", "path"),
    [("a=b", "a=b"), ("''", ""), ("1e3", "1000.0"), ("'1e3'", "1e3"), ("${trainer.output_dir}/m", "runs/m")],
)
def test_a_value_is_whatever_follows_the_first_equals_sign(text: str, path: str) -> None:
    assert load(TrainConfig, None, [f"model.path={text}"]).model.path == path


def test_null_is_no_value(write: Path) -> None:
    write.write_text("model: {path: tiny}\ntrainer: {total_training_steps: 3}\n")
    assert load(TrainConfig, write, ["trainer.total_training_steps=null"]).trainer.total_training_steps is None


def test_the_environment_is_interpolated(write: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA", "/mnt/data")
    write.write_text("model: {path: tiny}\ndata: {train_files: ['${oc.env:DATA}/a.parquet']}\n")
    assert load(TrainConfig, write).data.train_files == ["/mnt/data/a.parquet"]


def test_an_override_gives_an_option_to_the_part_selected_in_the_file_or_by_default(write: Path) -> None:
    write.write_text("model: {path: tiny}\nalgorithm: {adv_estimator: mine}\n")
    overrides = ["algorithm.adv_estimator.scale=2", "actor.policy_loss.clip_ratio_low=0.1"]
    config = load(TrainConfig, write, overrides)
    assert config.algorithm.adv_estimator == {"name": "mine", "scale": 2}
    assert config.actor.policy_loss == {"name": "vanilla", "clip_ratio_low": 0.1}


def test_selecting_another_part_drops_the_options_of_the_first(write: Path) -> None:
    write.write_text("model: {path: tiny}\nactor: {policy_loss: {name: mine, width: 3}}\n")
    assert load(TrainConfig, write, ["actor.policy_loss={name: other}"]).actor.policy_loss == {"name": "other"}
    assert load(TrainConfig, write, ["actor.policy_loss=other"]).actor.policy_loss == "other"


@pytest.mark.parametrize("override", ["foo", "--x", "=3", "a..b=1", "a.=1", "a b=1", "~a"])
def test_a_malformed_override_says_what_is_expected(override: str) -> None:
    with pytest.raises(ConfigError, match=r"is not an override; one is written key=value, e.g. actor.optim.lr=1e-5"):
        read(TrainConfig, None, [override])


@pytest.mark.parametrize("override", ["+rollout.n=2", "++rollout.n=2", "--rollout.n=2"])
def test_an_override_with_signs_before_it_is_shown_without(override: str) -> None:
    with pytest.raises(ConfigError, match=rf"^'{re.escape(override)}' is not an override; write rollout.n=2$"):
        read(TrainConfig, None, [override])


def test_a_value_that_is_not_yaml_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^data.train_files: '\[a' is not valid YAML: did not find expected"):
        read(TrainConfig, None, ["data.train_files=[a"])


def test_an_override_into_a_scalar_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"^rollout.n: must be an integer, not \{"):
        load(TrainConfig, None, ["model.path=x", "rollout.n=3", "rollout.n.x=4"])


BAD_FILES = {
    "a tab": ("a: 1\n\tb: 2\n", r"c.yaml, line 2, column 1: not valid YAML: found a tab character"),
    "a tab before a bracket": (
        "model:\n  path: x\nactor:\n\t{strategy: y}\n",
        "c.yaml, line 4, column 1: .* cannot start any token: indent by spaces, not by tabs",
    ),
    "an open bracket": ("model:\n  path: [x\n", r"c.yaml, line 3, column 1: not valid YAML: did not find"),
    "a key twice": ("model:\n  path: x\n  path: y\n", r"c.yaml, line 3, column 3: not valid YAML: found dupl"),
    "a list": ("- 1\n", r"c.yaml: must be a mapping of sections such as 'model:', not a list"),
    "half an interpolation": ("model: {path: '${bad'}\n", r"^model.path: .*an interpolation is written .*c.yaml\)$"),
    "a number": ("3", "c.yaml: not valid YAML: Invalid loaded object type: int"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_that_is_not_a_config_names_file_and_line(write: Path, text: str, message: str) -> None:
    write.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load(TrainConfig, write)


def test_a_file_that_is_not_text_is_an_error(write: Path) -> None:
    write.write_bytes(b"model: \xff\xfe")
    with pytest.raises(ConfigError, match=r"c.yaml: must be a YAML file in UTF-8"):
        load(TrainConfig, write)


def test_a_file_that_is_missing_or_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^cannot read the config file .*none.yaml: No such file or directory$"):
        load(TrainConfig, tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"Is a directory$"):
        load(TrainConfig, tmp_path)


def test_an_empty_file_is_the_defaults(write: Path) -> None:
    write.write_text("# nothing yet\n")
    assert load(TrainConfig, write, ["model.path=x"]) == load(TrainConfig, None, ["model.path=x"])


@pytest.mark.parametrize("text", ["a: " + "[" * 400 + "]" * 400, '{"a": ' * 100_000])
def test_brackets_without_end_are_an_error_at_once(write: Path, text: str) -> None:
    write.write_text(text)
    with pytest.raises(ConfigError, match="more than 100 brackets within each other"):
        read(TrainConfig, write)
    with pytest.raises(ConfigError, match="more than 100 brackets within each other"):
        read(TrainConfig, None, [f"data.train_files={text}"])
