"""The config of a resumed run beside that of its checkpoint."""

import dataclasses
import json

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
    saved = Checkpoint(tmp_path, 1, {}, None, {}, before, {"corerl": "0.1", "corerl-grpo": "0.1"})
    versions = {"corerl": "0.1", "corerl-grpo": "0.2"}
    with pytest.raises(ConfigError) as error:
        check_same(saved, config(), versions, {}, {})
    assert "corerl-grpo: 0.1 -> 0.2" in str(error.value) and "\n  trainer.total" not in str(error.value)
    assert "trainer.resume_with_changes=true" in str(error.value)
    check_same(saved, config(resume_with_changes=True), versions, {}, {})
    assert "corerl-grpo: 0.1 -> 0.2" in capsys.readouterr().err


def test_a_checkpoint_of_another_architecture_is_refused_by_its_config(tmp_path):
    stored = {"model_type": "qwen3", "num_hidden_layers": 28, "head_dim": 128, "num_experts": None}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(stored))
    (tmp_path / "config.json").write_text(json.dumps({**stored, "head_dim": None, "vocab_size": 51}))
    saved = Checkpoint(tmp_path, 1, {}, None, {}, {}, {})
    told = dataclasses.replace(config(resume_with_changes=True), model=ModelConfig(str(tmp_path)))
    check_same(saved, told, {}, {}, {})
    (tmp_path / "config.json").write_text(json.dumps({**stored, "num_hidden_layers": 36}))
    with pytest.raises(
        ConfigError, match=r"^model\.path: the model .* has num_hidden_layers 36, the checkpoint .* has 28$"
    ):
        check_same(saved, told, {}, {}, {})
