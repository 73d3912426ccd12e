"""``corerl export``: a model folder out of the strategy's own files."""

import functools
import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from corerl.checkpoint import manifest
from corerl.cli.main import run


@pytest.fixture
def saved(train, workplace):
    """The folder of a run of two steps, without model folders in its checkpoints."""
    assert train("trainer.save_huggingface=never", "trainer.save_freq=1").code == 0
    [folder] = workplace.run_folders
    assert not list(folder.rglob("huggingface"))
    return folder


def test_the_exported_model_gives_the_logits_of_the_trained_one(saved, material, tmp_path, capsys):
    assert run(["export", str(saved), str(tmp_path / "out"), "--max-shard-gb", "0.00003"]) == 0
    assert "global_step_2" in capsys.readouterr().out
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 2
    trained = AutoModelForCausalLM.from_pretrained(material / "model", dtype=torch.float32)
    before = trained(torch.arange(20)[None]).logits
    weights = load_file(saved / "checkpoints" / "global_step_2" / "actor" / "weights.safetensors")
    trained.load_state_dict(weights, strict=False)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = torch.arange(20)[None]
    assert exported.dtype == torch.float32
    assert torch.equal(exported(ids).logits, trained(ids).logits) and not torch.equal(trained(ids).logits, before)
    texts = [
        AutoTokenizer.from_pretrained(path).apply_chat_template([{"role": "user", "content": "1 + 2"}])["input_ids"]
        for path in (tmp_path / "out", material / "model")
    ]
    assert texts[0] == texts[1]
    assert (tmp_path / "out" / "generation_config.json").is_file()


def test_a_dtype_can_be_chosen_and_a_folder_is_never_replaced(saved, tmp_path, capsys):
    checkpoint = str(saved / "checkpoints" / "global_step_1")
    assert run(["export", checkpoint, str(tmp_path / "out"), "--dtype", "bf16"]) == 0
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.bfloat16
    assert run(["export", checkpoint, str(tmp_path / "out")]) == 2
    assert "already exists" in capsys.readouterr().err


def test_the_folder_is_named_by_out_as_in_other_commands(saved, tmp_path, capsys):
    assert run(["export", str(saved), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "config.json").is_file()
    for arguments in ([], ["--out", str(tmp_path / "a"), str(tmp_path / "b")]):
        assert run(["export", str(saved), *arguments]) == 2
        assert "--out: must name one new folder" in capsys.readouterr().err


def test_weights_have_the_mode_of_the_other_files(saved, tmp_path):
    assert run(["export", str(saved), str(tmp_path / "out")]) == 0
    expected = (saved / "config.yaml").stat().st_mode
    assert {each.stat().st_mode for each in (tmp_path / "out").iterdir()} == {expected}
    assert {each.stat().st_mode for each in (saved / "checkpoints").rglob("*.*") if each.is_file()} == {expected}


@pytest.mark.parametrize("trust", [[], ["--trust"]])
def test_code_of_the_model_is_run_only_if_it_is_trusted_and_nobody_is_asked(
    saved, tmp_path, capsys, monkeypatch, trust
):
    checkpoint = saved / "checkpoints" / "global_step_2"
    described = json.loads((checkpoint / "model" / "config.json").read_text())
    described |= {"model_type": "mine", "auto_map": {"AutoConfig": "configuration_mine.Mine"}}
    (checkpoint / "model" / "config.json").write_text(json.dumps(described))
    code = f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\nraise SystemError('it ran')\n"
    (checkpoint / "model" / "configuration_mine.py").write_text(code)
    (checkpoint / "manifest.json").unlink()
    manifest.write(checkpoint)
    monkeypatch.setattr("builtins.input", lambda *prompt: pytest.fail("a question on the terminal"))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    code = run(["export", str(checkpoint), str(tmp_path / "out"), *trust])
    error = capsys.readouterr().err
    assert code == 2 and not (tmp_path / "out").exists()
    assert (tmp_path / "ran").exists() == bool(trust)
    if not trust:
        named = "model/config.json names code of the model (auto_map: configuration_mine.Mine)"
        assert named in error and "add --trust to run it" in error and len(error.splitlines()) == 1


def test_code_of_a_language_model_beside_a_known_config_is_refused_too(saved, tmp_path, capsys, monkeypatch):
    config = saved / "checkpoints" / "global_step_2" / "model" / "config.json"
    described = json.loads(config.read_text()) | {
        "model_type": "vit",
        "auto_map": {"AutoModelForCausalLM": "mine.Mine"},
    }
    config.write_text(json.dumps(described))
    (config.parents[1] / "manifest.json").unlink()
    manifest.write(config.parents[1])
    monkeypatch.setattr("builtins.input", lambda *prompt: pytest.fail("a question on the terminal"))
    assert run(["export", str(config.parents[1]), str(tmp_path / "out")]) == 2
    assert "names code of the model (auto_map: mine.Mine)" in capsys.readouterr().err


def test_code_of_an_architecture_that_transformers_has_is_not_needed(saved, tmp_path):
    config = saved / "checkpoints" / "global_step_2" / "model" / "config.json"
    described = json.loads(config.read_text()) | {"auto_map": {"AutoConfig": "configuration_mine.Mine"}}
    config.write_text(json.dumps(described))
    (config.parents[1] / "manifest.json").unlink()
    manifest.write(config.parents[1])
    assert run(["export", str(config.parents[1]), str(tmp_path / "out")]) == 0


def test_what_is_no_whole_checkpoint_is_refused_and_nothing_is_left(saved, tmp_path, capsys):
    assert run(["export", str(tmp_path), str(tmp_path / "out")]) == 2
    assert "is neither a checkpoint nor a run with one" in capsys.readouterr().err
    checkpoint = saved / "checkpoints" / "global_step_2"
    (checkpoint / "actor" / "weights.safetensors").write_bytes(b"")
    assert run(["export", str(checkpoint), str(tmp_path / "out")]) == 2
    assert "actor/weights.safetensors has 0 bytes" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_with_aliases_in_its_config_is_exported_and_resumed(train, workplace, tmp_path, capsys):
    aliases = pytest.importorskip("corerl_verl.keys").ALIASES
    loss = "actor.policy_loss={name: vanilla, clip_ratio_high: 0.3}"
    assert train("trainer.save_freq=1", "trainer.total_training_steps=1", loss).code == 0
    [folder] = workplace.run_folders
    checkpoint = folder / "checkpoints" / "global_step_1"
    state = json.loads((checkpoint / "state.json").read_text())
    assert state["config"]["actor"]["policy_loss"] == {"name": "vanilla", "clip_ratio_high": 0.3}
    state["config"]["actor"]["policy_loss"] = "vanilla"
    for alias in aliases:  # keys of the schema once, most of them null
        *sections, name = alias.split(".")
        section = functools.reduce(dict.__getitem__, sections, state["config"])
        section[name] = 0.3 if alias == "actor.clip_ratio_high" else None
    (checkpoint / "state.json").write_text(json.dumps(state))
    (checkpoint / "manifest.json").unlink()
    manifest.write(checkpoint)
    assert run(["export", str(checkpoint), str(tmp_path / "out")]) == 0, capsys.readouterr().err
    assert list((tmp_path / "out").glob("*.safetensors"))
    assert run(["train", str(workplace.config), "trainer.total_training_steps=2"]) == 2
    assert capsys.readouterr().err.endswith("\n  actor.policy_loss.clip_ratio_high: 0.3 -> not there\n")
    resumed = train("trainer.total_training_steps=2", loss)
    assert (resumed.code, "resuming" in resumed.stderr) == (0, True)
