"""The config of a resumed run beside that of its checkpoint."""

import dataclasses
import json
from dataclasses import asdict
from operator import attrgetter

import pytest

from corerl.checkpoint.resume import Checkpoint
from corerl.contracts.config import ModelConfig, TrainConfig, TrainerConfig
from corerl.errors import ConfigError
from corerl_tools.resumed import check_same, differences


def config(**trainer):
    return TrainConfig(ModelConfig("m"), trainer=TrainerConfig(**trainer))


def test_changes_are_listed_and_allowed_by_a_key(tmp_path, capsys):
    before = {"actor": {"optim": {"lr": 1e-6}}, "trainer": {"save_freq": 1}, "rollout": {"options": {"python": "a"}}}
    now = {"actor": {"optim": {"lr": 1e-5}, "clip": 1}, "trainer": {"save_freq": 2}, "rollout": {"options": {}}}
    assert differences(before, now) == ["actor.optim.lr: 1e-06 -> 1e-05", "actor.clip: not there -> 1"]
    assert differences({"trainer": {}}, {"trainer": {"profile": {"steps": [1]}}}) == []
    old = Checkpoint(tmp_path, 1, {}, None, {}, before, {"corerl": "0.1", "corerl-grpo": "0.1"})
    versions = {"corerl": "0.1", "corerl-grpo": "0.2"}
    with pytest.raises(ConfigError) as error:
        check_same(old, config(), versions, {}, {})
    assert "corerl-grpo: 0.1 -> 0.2" in str(error.value) and "\n  trainer.total" not in str(error.value)
    assert "trainer.resume_with_changes=true" in str(error.value)
    check_same(old, config(resume_with_changes=True), versions, {}, {})
    assert "corerl-grpo: 0.1 -> 0.2" in capsys.readouterr().err


ROWS = "rows of data.train_files"


def saved(tmp_path, given=None, **state):
    """A checkpoint of a config with these values of keys; of the digests, ``rows`` are those of the training rows."""
    values = config()
    for key, value in (given or {}).items():
        section, _, name = key.rpartition(".")
        setattr(attrgetter(section)(values), name, value)
    state = {"digests": {ROWS: "1"}, **state}
    return Checkpoint(
        tmp_path, 4, {}, state.pop("kl_coef", None), state.pop("trackers", {}), asdict(values), {}, **state
    )


def compared(checkpoint, capsys, digests=None, **changes):
    """(what is left, lines) of a run that accepts changes."""
    now = config(resume_with_changes=True)
    for key, value in changes.items():
        section, _, name = key.replace("__", ".").rpartition(".")
        setattr(attrgetter(section)(now), name, value)
    left = check_same(checkpoint, now, {}, {}, {ROWS: "1"} | (digests or {}))
    return left, capsys.readouterr().err


def test_other_training_rows_are_refused_unless_they_are_accepted(tmp_path, capsys):
    checkpoint = saved(tmp_path)
    with pytest.raises(ConfigError, match=r"resume_with_changes=true .*\n  rows of data\.train_files: other rows than"):
        check_same(checkpoint, config(), {}, {}, {ROWS: "2"})
    assert compared(checkpoint, capsys, {ROWS: "2"})[1].endswith(f"{ROWS}: other rows than those of the checkpoint\n")
    assert compared(checkpoint, capsys) == ([], "")


def test_other_files_are_a_line_each_and_those_of_free_keys_are_none(tmp_path, capsys):
    names = ("reward.scorer: ./score.py:score", "tokenizer: chat_template.jinja", "trainer.profile.x: ./p.py")
    checkpoint = saved(tmp_path, digests=dict.fromkeys((ROWS, *names), "1"))
    left, lines = compared(checkpoint, capsys, {**dict.fromkeys(names, "2"), "model.path: ./new": "3"})
    assert left == []
    assert lines.splitlines() == [f"{name} has other content than in the run of {tmp_path}" for name in names[:2]]
    check_same(checkpoint, config(), {}, {}, dict.fromkeys(names, "2"))  # nothing has to be accepted


def test_a_checkpoint_of_an_earlier_version_is_not_compared_and_a_line_is_printed(tmp_path, capsys):
    left, lines = compared(saved(tmp_path, digests={}), capsys)
    assert (
        left == [] and "is of an earlier version, without digests: rows, files and tokenizer are not compared" in lines
    )


@pytest.mark.parametrize(
    ("state", "given", "changes", "left"),
    [
        ({"kl_coef": 0.5}, {}, {"algorithm__kl_ctrl__kl_coef": 0.1}, ["kl_coef"]),
        ({"kl_coef": 0.5}, {}, {"algorithm__kl_ctrl__type": {"name": "adaptive", "horizon": 5}}, ["kl_coef"]),
        (
            {"kl_coef": 0.5},
            {"algorithm.kl_ctrl.type": {"name": "adaptive", "horizon": 7}},
            {"algorithm__kl_ctrl__type": {"name": "adaptive", "horizon": 5}},
            [],
        ),
        ({"kl_coef": 0.5}, {}, {"actor__grad_clip": 0.5}, []),
        ({"kl_coef": None}, {}, {"algorithm__kl_ctrl__kl_coef": 0.1}, []),
        ({"scores": {3: 0.5}}, {}, {"trainer__keep_best": "val"}, ["scores"]),
        ({"scores": {3: 0.5}}, {"trainer.keep_best": "val"}, {"trainer__keep_best": "val"}, []),
        ({"scores": {3: 0.5}}, {"trainer.keep_best": "val"}, {"trainer__keep_best": "other"}, ["scores"]),
        ({"scores": {3: 0.5}}, {}, {"data__val_files": ["other.parquet"]}, ["scores"]),
        ({"scores": {3: 0.5}}, {}, {"rollout__val_kwargs__n": 4}, ["scores"]),
        ({"scores": {3: 0.5}}, {}, {"reward__scorer": "gsm8k"}, ["scores"]),
        ({"scores": {3: 0.5}}, {}, {"trainer__keep_best_mode": "min"}, []),
        ({"scores": {3: None}}, {}, {"trainer__keep_best": "val"}, []),
        ({"trackers": {"wandb": "a"}}, {}, {"tracking__project_name": "b"}, ["trackers"]),
        ({"trackers": {"wandb": "a"}}, {}, {"tracking__timeout": 3.0}, []),
    ],
)
def test_state_that_would_override_a_change_is_not_taken_and_a_line_is_printed(
    tmp_path, capsys, state, given, changes, left
):
    found, lines = compared(saved(tmp_path, given, **state), capsys, **changes)
    assert found == left
    named = [line for line in lines.splitlines() if line.startswith(f"{tmp_path}: ")]
    assert len(named) == len(left) and all(line.endswith(")") for line in named)


def test_scores_are_not_taken_after_another_content_of_what_they_measure(tmp_path, capsys):
    for name in ("rows of data.val_files", "reward.scorers.a: ./s.py:f"):
        checkpoint = saved(tmp_path, scores={3: 0.5}, digests={ROWS: "1", name: "1"})
        assert compared(checkpoint, capsys, {name: "2"})[0] == ["scores"]


def test_finished_groups_of_before_a_change_are_not_taken(tmp_path, capsys):
    (tmp_path / "groups.parquet").touch()
    checkpoint = saved(tmp_path, digests={ROWS: "1", "rows of data.val_files": "1", "reward.scorer: ./s.py:f": "1"})
    assert compared(checkpoint, capsys)[0] == []
    assert compared(checkpoint, capsys, trainer__save_freq=7)[0] == []
    assert compared(checkpoint, capsys, {"rows of data.val_files": "2"})[0] == []
    for digests, changes in (({"reward.scorer: ./s.py:f": "2"}, {}), ({ROWS: "2"}, {}), ({}, {"rollout__n": 3})):
        left, lines = compared(checkpoint, capsys, digests, **changes)
        assert left == ["has_groups"] and "its finished groups, of before the changes, are generated again" in lines


def test_a_change_that_does_not_hold_alone_has_a_note(tmp_path, capsys):
    _, lines = compared(saved(tmp_path), capsys, trainer__seed=3, critic__path="x")
    assert "trainer.seed: 0 -> 3 (not for random states of libraries, which are those of the checkpoint)" in lines
    assert "critic.path: None -> x (no effect: the critic's weights are those of the checkpoint)" in lines


def test_a_checkpoint_of_another_architecture_is_refused_by_its_config(tmp_path):
    stored = {"model_type": "qwen3", "num_hidden_layers": 28, "head_dim": 128, "num_experts": None}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(stored))
    (tmp_path / "config.json").write_text(json.dumps({**stored, "head_dim": None, "vocab_size": 51}))
    other = Checkpoint(tmp_path, 1, {}, None, {}, {}, {})
    told = dataclasses.replace(config(resume_with_changes=True), model=ModelConfig(str(tmp_path)))
    check_same(other, told, {}, {}, {})
    (tmp_path / "config.json").write_text(json.dumps({**stored, "num_hidden_layers": 36}))
    with pytest.raises(
        ConfigError, match=r"^model\.path: the model .* has num_hidden_layers 36, the checkpoint .* has 28$"
    ):
        check_same(other, told, {}, {}, {})
