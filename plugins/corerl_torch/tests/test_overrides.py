"""``model.override_config``: values of config.json for the model, the engine and the files of a checkpoint."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from corerl.cli.common import violations as violations_of
from corerl.cli.main import run
from corerl.config.load import load
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.data import load_tokenizer
from corerl.errors import ConfigError, ModelError
from corerl.models import overridden
from corerl.plugins import load_plugins
from corerl.registry.parts import resolve_parts
from corerl.telemetry.metrics_log import read_metrics
from corerl_testing.tiny_model import tiny_model
from corerl_tools.check.run import _overrides
from corerl_torch.loading import load_causal_lm
from corerl_torch.overrides import differences, violations

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
CHANGES = {"max_position_embeddings": 32, "rope_scaling": YARN}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def by_hand(tmp_path: Path) -> Path:
    """A copy of the model's folder with YaRN in its config.json."""
    copy = shutil.copytree(tiny_model(), tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    theta = config["rope_parameters"]["rope_theta"]
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": theta}
    config |= {"max_position_embeddings": 32, "rope_parameters": yarn}
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def test_the_model_is_that_of_a_folder_with_these_values(tmp_path: Path) -> None:
    ids = torch.arange(40, 64)[None]
    given = {
        "plain": ModelConfig(str(tiny_model())),
        "changed": ModelConfig(str(tiny_model()), override_config=CHANGES),
        "by hand": ModelConfig(str(by_hand(tmp_path))),
    }
    logits = {name: load_causal_lm(each, device="cpu", dtype=torch.float32)(ids).logits for name, each in given.items()}
    assert torch.equal(logits["changed"], logits["by hand"])
    assert (logits["changed"] - logits["plain"]).abs().max() > 1e-3
    files = [load_tokenizer(given[name]).model_files() for name in ("changed", "by hand")]  # those of checkpoints
    assert files[0] == files[1]


def test_its_folder_is_made_once_of_links_and_anew_if_a_value_changes(tmp_path: Path) -> None:
    model = ModelConfig(str(tiny_model()), override_config=CHANGES)
    folder = Path(overridden(model).path)
    assert overridden(model).path == str(folder) and overridden(overridden(model)).path == str(folder)
    assert (folder / "model.safetensors").resolve() == (tiny_model() / "model.safetensors").resolve()
    assert not list(folder.parent.glob("tmp*"))
    other = overridden(ModelConfig(str(tiny_model()), override_config={"max_position_embeddings": 33}))
    assert json.loads((Path(other.path) / "config.json").read_text())["max_position_embeddings"] == 33
    assert other.path != str(folder)
    (folder / "config.json").unlink()  # an old form of rope: as transformers 4 wrote it
    (folder / "config.json").write_text('{"rope_scaling": null, "rope_theta": 3.0}')
    old = overridden(ModelConfig(str(folder), override_config={"rope_scaling": YARN}))
    assert json.loads((Path(old.path) / "config.json").read_text()) == {"rope_scaling": YARN, "rope_theta": 3.0}
    with pytest.raises(ConfigError, match=rf"needs a folder with a config\.json, or a hub name, .* not {tmp_path}"):
        overridden(ModelConfig(str(tmp_path), override_config=CHANGES))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of downloaded models has some/model; the hub is not asked."""
    commit = "0" * 40
    kept = tmp_path / "hub" / "models--some--model"
    shutil.copytree(tiny_model(), kept / "snapshots" / commit)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.mark.usefixtures("hub")
def test_a_hub_name_is_overridden_where_it_is_loaded_and_checked_if_it_is_here() -> None:
    given = [ModelConfig(path, override_config=CHANGES) for path in ("some/model", str(tiny_model()))]
    folder = Path(overridden(given[0], weights=True).path)
    assert folder.name == "model" and json.loads((folder / "config.json").read_text())["max_position_embeddings"] == 32
    ids = torch.arange(40, 64)[None]
    ours, theirs = (load_causal_lm(each, device="cpu", dtype=torch.float32)(ids).logits for each in given)
    assert torch.equal(ours, theirs)
    assert differences(given[0]) == differences(given[1])
    wrong = {"max_position_embedings": 9}
    [error] = violations(ModelConfig("some/model", override_config=wrong))
    assert "did you mean" in str(error)
    missing = ModelConfig("some/other", override_config=wrong)
    assert list(violations(missing)) == [] and differences(missing) is None
    with pytest.raises(ModelError, match=r"some/other is no folder here and cannot be had from the hub"):
        overridden(missing, weights=True)
    config = TrainConfig(missing)
    [found] = _overrides(config)
    assert "could not be compared with the config.json of some/other" in str(found)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (CHANGES, None),
        ({"rope_parameters": {"rope_theta": 3.0}, "attention_dropout": 0.0}, None),
        ({"max_position_embedings": 9}, r"qwen2; did you mean max_position_embeddings or"),
        ({"attn_implementation": "eager"}, r"has no effect: set model\.attn_implementation"),
        ({"attention_dropout": 0.1}, r"is 0\.1, and models are trained without dropout"),
    ],
)
def test_a_key_that_the_family_lacks_is_refused_with_the_nearest_one(changes: dict, sentence: str | None) -> None:
    found = list(violations(ModelConfig(str(tiny_model()), override_config=changes)))
    assert len(found) == (sentence is not None)
    for each in found:
        assert each.key == f"model.override_config.{next(iter(changes))}"
        with pytest.raises(ConfigError, match=sentence):
            raise each


def test_the_differences_are_listed() -> None:
    found = differences(ModelConfig(str(tiny_model()), override_config=CHANGES))
    assert found == [
        "max_position_embeddings: 32768 -> 32",
        "rope_parameters.factor: null -> 4.0",
        "rope_parameters.original_max_position_embeddings: null -> 8",
        'rope_parameters.rope_type: "default" -> "yarn"',
    ]


@pytest.mark.skipif("CORERL_EVERY_COMBINATION" not in os.environ, reason="CORERL_EVERY_COMBINATION=1 trains")
def test_trainer_reference_engine_and_export_have_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The engine's log-probs are the trainer's, the KL to the reference is 0, and the export needs no override."""
    assert run(["prepare", "arithmetic", "--out", str(tmp_path / "data"), "--train-size", "8"]) == 0
    file = tmp_path / "config.yaml"
    file.write_text(
        f"""
        model: {{path: {tiny_model()}, override_config: {json.dumps({**CHANGES, "max_position_embeddings": 256})}}}
        data: {{train_files: [{tmp_path}/data/train.parquet], train_batch_size: 2, max_prompt_length: 128,
               max_response_length: 16}}
        actor: {{device: cpu, ppo_mini_batch_size: 2, use_kl_loss: true}}
        rollout: {{n: 2, ignore_eos: true}}
        trainer: {{total_training_steps: 1, output_dir: {tmp_path}/runs, save_huggingface: always}}
        algorithm: {{rollout_correction: {{max_log_prob_diff: 1e-4}}}}
        tracking: {{loggers: []}}
        """
    )
    assert run(["check", str(file)]) == 0
    assert "max_position_embeddings: 32768 -> 256" in capsys.readouterr().out
    assert run(["train", str(file)]) == 0
    [folder] = (tmp_path / "runs").glob("*/*")
    [step] = [each for each in read_metrics(folder / "metrics.jsonl") if "actor/kl_loss" in each]
    assert step["actor/kl_loss"] == 0
    exported = folder / "checkpoints" / "global_step_1" / "huggingface"
    assert json.loads((exported / "config.json").read_text())["rope_parameters"]["rope_type"] == "yarn"
    assert "override_config" in (folder / "config.yaml").read_text()
    assert str(tiny_model()) in (folder / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ({"path": "other"}, "critic.model.path"),
        ({"lora_rnk": 2}, "critic.model.lora_rnk"),
        ({"override_config": {"max_positions": 2}}, "model.override_config.max_positions"),
    ],
)
def test_wrong_values_of_the_critics_model_are_errors_before_the_run(model: dict, key: str) -> None:
    config = load(TrainConfig, None, [f"model.path={tiny_model()}", "algorithm.adv_estimator=gae"])
    config.critic.model = model
    plugins = load_plugins()
    found = violations_of(config, resolve_parts(config, plugins.registries), plugins)
    assert key in [error.key for error in found if isinstance(error, ConfigError)]
