"""What is read of a checkpoint, and the files of the model folder, without a run before."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from corerl.checkpoint import manifest
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.errors import ModelError, UntrustedError
from corerl.registry.modules import untrusted
from corerl_testing.tiny_model import tiny_model
from corerl_tools.export.export import export

STRATEGIES = """
from safetensors.torch import load_file
from corerl import hookimpl

def read(folder, model):
    if not (folder / "weights.safetensors").is_file():
        from corerl.errors import ModelError
        raise ModelError("weights.safetensors is missing")
    yield from sorted(load_file(folder / "weights.safetensors").items())

def eager(folder, model):
    return iter(list(read(folder, model)))

@hookimpl
def register_training_strategies(register):
    register("plain", dict, read_checkpoint=eager)
    register("ranked", dict)
"""


@pytest.fixture
def strategies(tmp_path):
    file = tmp_path / "strategies.py"
    file.write_text(STRATEGIES)
    return file


@pytest.fixture
def checkpoint(tmp_path, strategies):
    """``checkpoint(strategy, ready=False, weights=True)``: of the tiny model, with ``torch_dtype`` in its config."""

    def make(strategy: object, *, ready: bool = False, weights: bool = True) -> Path:
        config = TrainConfig(ModelConfig("m"))
        config.actor.strategy, config.plugins.load = strategy, [str(strategies)]
        folder = tmp_path / "global_step_4"
        for part in ("actor", "model", *(["huggingface"] if ready else [])):
            (folder / part).mkdir(parents=True)
        if ready:
            (folder / "huggingface" / "model.safetensors").write_text("of the ranks")
        model = json.loads((tiny_model() / "config.json").read_text())
        del model["dtype"]
        (folder / "model" / "config.json").write_text(json.dumps({**model, "torch_dtype": "float32"}))
        if weights:
            save_file(load_file(tiny_model() / "model.safetensors"), folder / "actor" / "weights.safetensors")
        state = {"step": 4, "sampler": {}, "kl_coef": None, "trackers": {}, "versions": {}, "dtype": "fp32"}
        (folder / "state.json").write_text(json.dumps({**state, "config": dataclasses.asdict(config)}))
        manifest.write(folder)
        return folder

    return make


@pytest.mark.parametrize("strategy", ["plain", {"name": "plain", "some": 1}])
def test_weights_become_one_file_in_the_dtype_that_is_asked_for(checkpoint, tmp_path, strategy):
    made = checkpoint(strategy)
    out = tmp_path / "out"
    assert export(made, out, dtype="bf16") == made
    config = json.loads((out / "config.json").read_text())
    assert config["dtype"] == "bfloat16" and "torch_dtype" not in config
    expected, written = (load_file(folder / "model.safetensors") for folder in (tiny_model(), out))
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name].bfloat16()) for name in expected)
    assert {path.name for path in out.iterdir()} == {"config.json", "model.safetensors"}


def test_weights_of_several_files_are_in_an_index(checkpoint, tmp_path):
    out = tmp_path / "out"
    export(checkpoint("plain"), out, shard_bytes=100_000)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    expected = load_file(tiny_model() / "model.safetensors")
    files = sorted(path.name for path in out.glob("*.safetensors"))
    assert files == [f"model-{number:05}-of-{len(files):05}.safetensors" for number in range(1, len(files) + 1)]
    assert len(files) > 1 and {*index["weight_map"].values()} == {*files}
    found = {name: load_file(out / file)[name] for name, file in index["weight_map"].items()}
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in expected.values())
    for file in files:
        shard = load_file(out / file)
        assert len(shard) == 1 or sum(each.nbytes for each in shard.values()) <= 100_000


@pytest.mark.parametrize(("strategy", "weights"), [("ranked", True), ("plain", False)])
def test_weights_that_cannot_be_read_are_those_of_the_model_folder_that_the_ranks_wrote(
    checkpoint, tmp_path, strategy, weights
):
    export(checkpoint(strategy, ready=True, weights=weights), tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").read_text() == "of the ranks"


@pytest.mark.parametrize(
    ("strategy", "words"),
    [("ranked", r"strategy 'ranked' cannot read .* has no huggingface/"), ("plain", "weights.safetensors is missing")],
)
def test_weights_that_nobody_can_read_are_an_error(checkpoint, tmp_path, strategy, words):
    with pytest.raises(ModelError, match=words):
        export(checkpoint(strategy, weights=False), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_empty_model_folder_is_none(checkpoint, tmp_path):
    made = checkpoint("ranked")
    (made / "huggingface").mkdir()
    with pytest.raises(ModelError, match="has no huggingface/"):
        export(made, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("attribute", [False, True])
def test_code_that_the_checkpoint_names_is_listed_and_not_run(checkpoint, strategies, tmp_path, attribute):
    strategy = f"{strategies}:STRATEGY" if attribute else "plain"
    with untrusted(), pytest.raises(UntrustedError) as error:
        export(checkpoint(strategy), tmp_path / "out")
    named = f"{strategies}, {strategy}" if attribute else str(strategies)
    assert f"names code: {named}. Read that code" in str(error.value)


def test_an_installed_strategy_reads_its_own_files(checkpoint, tmp_path):
    pytest.importorskip("corerl_fsdp")
    export(checkpoint("torch"), tmp_path / "out")
    expected, written = (load_file(folder / "model.safetensors") for folder in (tiny_model(), tmp_path / "out"))
    assert all(torch.equal(written[name], expected[name]) for name in expected)
