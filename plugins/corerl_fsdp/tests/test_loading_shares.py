"""Ranks load their shares: the values of one device, and no more memory than a share and one tensor."""

import json
import os

import pytest
import rank_jobs
import torch
from safetensors.torch import load_file, save_file

from corerl.contracts.config import ModelConfig
from corerl_torch.loading import load_model
from families import write_config

pytestmark = pytest.mark.xdist_group("ranks")  # which are started once

EVERY = os.environ.get("CORERL_EVERY_COMBINATION") == "1"

SLACK = 20_000
"""bytes: buffers, padded shares, facts that ranks exchange; padded rows need no model that probes their packing"""

SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "vocab_size": 1001}


def written(folder, family="qwen2", dtype=torch.float32, shard="5GB", **changes):
    """A folder with the files of a model."""
    write_config(folder, family, **{**SHAPE, "tie_word_embeddings": False, **changes})
    made = load_model(ModelConfig(str(folder), load_format="dummy"), "lm", device="cpu", dtype=dtype, seed=3)
    made.save_pretrained(folder, max_shard_size=shard)
    return folder


def require_shares(worlds, folder, size=2, options=None, **job):
    """Ranks that load this have the weights of one device."""
    job = {"kind": "loading", "model": str(folder), "config": {"load_format": "auto"}, **job}
    expected = rank_jobs.run({**job, "torch": {}})["weights"]
    results = worlds[size].run(**job, fsdp={"use_remove_padding": False, **(options or {})})
    for result in results:
        assert "error" not in result, result["error"]
        assert result["most"] <= result["share"] + result["largest"] + result["adapters"] + SLACK
        assert result["share"] + result["largest"] + SLACK < result["all"]  # the whole model would be noticed
        assert result["weights"].keys() == expected.keys()
        for name, true in expected.items():
            assert torch.equal(result["weights"][name], true), name


EXPERTS = {"num_experts": 8, "moe_intermediate_size": 32, "hidden_size": 64}


TIED = {"tie_word_embeddings": True, "num_hidden_layers": 10}
ADAPTED = {"lora_rank": 2, "load_format": "auto", "dtype": "bf16"}
CASES = {
    "experts": ({"family": "qwen3_moe", "shard": "300KB", **EXPERTS}, {}),
    "value head with adapters": ({"family": "llama"}, {"head": "value", "config": ADAPTED}),
}
if EVERY:
    CASES |= {
        "tied": (TIED, {}),
        "half index": ({"dtype": torch.bfloat16, "shard": "100KB"}, {"size": 4}),
        "divided experts": ({"family": "qwen3_moe", **EXPERTS}, {"size": 4, "options": {"expert_parallel_size": 2}}),
        "divided matrices": ({"num_hidden_layers": 12}, {"size": 4, "options": {"tensor_model_parallel_size": 2}}),
        "tied divided matrices": (TIED, {"options": {"tensor_model_parallel_size": 2}}),
        "groups with copies": ({}, {"size": 4, "options": {"fsdp_size": 2}}),
        "dora": ({}, {"config": {**ADAPTED, "lora_dora": True}}),
    }


@pytest.mark.parametrize("name", CASES)
def test_ranks_read_their_shares_of_the_files(worlds, tmp_path, name):
    files, job = CASES[name]
    require_shares(worlds, written(tmp_path, **files), **job)


@pytest.mark.parametrize(
    ("family", "size"),
    [("qwen3_moe", 2), *([("qwen3_moe", 4), ("qwen2", 2), ("qwen2", 4)] if EVERY else [])],
)
def test_random_weights_are_those_of_one_device_for_any_number_of_ranks(worlds, tmp_path, family, size):
    write_config(tmp_path, family, **{**SHAPE, **EXPERTS, "tie_word_embeddings": False})
    require_shares(worlds, tmp_path, size, config={"load_format": "dummy"}, seed=5)


@pytest.mark.skipif(not EVERY, reason="CORERL_EVERY_COMBINATION is not set")
def test_files_with_a_tied_tensor_under_its_other_name_are_read(worlds, tmp_path):
    folder = written(tmp_path, **TIED)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    require_shares(worlds, folder)


@pytest.mark.skipif(not EVERY, reason="CORERL_EVERY_COMBINATION is not set")
def test_ranks_read_their_shares_of_a_checkpoint_of_another_number_of_ranks(worlds, tmp_path):
    folder = str(write_config(tmp_path / "model", "qwen2", **{**SHAPE, "tie_word_embeddings": False}))
    options = {"use_remove_padding": False}
    worlds[2].run(kind="train", model=folder, fsdp=options, seeds=[], save=str(tmp_path / "saved"))
    for result in worlds[4].run(kind="loading", model=folder, fsdp=options, load=str(tmp_path / "saved")):
        assert "error" not in result, result["error"]
        assert result["most"] <= 3 * result["share"] + result["largest"] + SLACK  # weights and AdamW's two moments
        assert 3 * result["share"] + result["largest"] + SLACK < 1.5 * result["all"]


def without_a_tensor(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def of_another_shape(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 1005}))


def tied_by_the_config(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))


def cut_off(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def without_a_file(folder):
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (without_a_tensor, "lacks 1 of the weights, such as 'model.layers.1.mlp.up_proj.weight'"),
        (of_another_shape, "lm_head.weight has the shape (1001, 64), and the config asks for (1005, 64), and 1 more"),
        (tied_by_the_config, "have different values for lm_head.weight and model.embed_tokens.weight"),
        (cut_off, "are damaged: "),
        (without_a_file, "names model-00002-of-00002.safetensors, which is missing"),
    ],
)
def test_damaged_files_are_one_line_on_all_ranks(worlds, tmp_path, damage, words):
    damage(written(tmp_path, num_hidden_layers=2))
    job = {"kind": "build", "model": str(tmp_path), "config": {"load_format": "auto"}, "fsdp": {}}
    for result in worlds[2].run(**job):
        assert result["error"].startswith("ModelError: model.path: ") and words in result["error"]
        assert "\n" not in result["error"]
