"""Ranks that divide matrices: plans, checkpoints, exports, refusals; test_ranks_agree.py has their numbers."""

import os
from functools import partial

import pytest
import rank_jobs
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, CohereConfig

from corerl.contracts.config import ModelConfig, RuntimeConfig, TrainConfig
from corerl.errors import ConfigError
from corerl_check import Machine
from corerl_check.size import model_size
from corerl_fsdp import divided
from corerl_fsdp.options import FsdpOptions
from corerl_fsdp.reading import read_sharded
from corerl_fsdp.tensor_parallel import KEY, STYLES, plan_of
from corerl_torch.families.table import family_of
from families import write_config
from family_models import write_model

pytestmark = pytest.mark.xdist_group("ranks")  # which are started once

every_combination = pytest.mark.skipif(
    os.environ.get("CORERL_EVERY_COMBINATION") != "1", reason="CORERL_EVERY_COMBINATION is not set"
)
DIVIDED = {"fsdp": {"tensor_model_parallel_size": 2}, "cut": {"max_tokens": 30}}

assert_same = partial(torch.testing.assert_close, rtol=0, atol=0)


def off(given, true, which="gradient"):
    """The names whose tensors differ by more than 1e-5 of their norm."""
    return {
        name for name, each in true[which].items() if (given[which][name] - each).norm() > 1e-5 * each.norm() + 1e-8
    }


@every_combination
@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, set()),
        ({"layers.*.self_attn.q_norm": None}, {"q_norm"}),
        ({"layers.*.self_attn.k_norm": None}, {"k_norm"}),
        ({"layers.*.mlp.gate_proj": "colwise_gather_output"}, None),
        ({"layers.*.self_attn.o_proj": "rowwise_split_input"}, None),
    ],
)
def test_a_wrong_plan_gives_other_gradients(worlds, model_dirs, change, wrong):
    job = {"kind": "agree", "model": model_dirs["qwen3", True]}
    expected = rank_jobs.run(job)
    for result in worlds[2].run(**job, **DIVIDED, plan=change):
        if wrong is None:
            assert "error" in result
        else:
            found = off(result, expected)
            assert {name.split(".")[-2] for name in found} == wrong


def test_a_layer_computes_with_plain_tensors_and_takes_two_sums_in_each_direction(worlds, tmp_path):
    found = []
    for layers in (1, 2):
        folder = write_config(tmp_path / str(layers), "qwen2", num_hidden_layers=layers)
        found.append(worlds[2].run(kind="operations", model=folder, fsdp=DIVIDED["fsdp"])[0])
    assert [each["on_dtensors"] for each in found] == [0, 0]
    assert found[1]["sums"] - found[0]["sums"] == 4


@every_combination
@pytest.mark.parametrize(("family", "checkpointing"), [("qwen2", True), ("qwen3", False)])
def test_compiled_layers_have_the_numbers_of_one_device(worlds, model_dirs, family, checkpointing):
    config = {"enable_gradient_checkpointing": checkpointing}
    job = {"kind": "agree", "model": model_dirs[family, True], "config": config, "cut": DIVIDED["cut"]}
    expected, fsdp = rank_jobs.run(job), {**DIVIDED["fsdp"], "compile": True}
    for result in worlds[2].run(**job, fsdp=fsdp, compiler="eager", within=400):
        assert not off(result, expected)


@every_combination
@pytest.mark.parametrize("fsdp", [{}, {"fsdp_size": 1}])
def test_a_checkpoint_of_divided_matrices_is_read_by_any_ranks(worlds, model_dirs, tmp_path, fsdp):
    job = {"kind": "train", "model": model_dirs["qwen3", False], "cut": DIVIDED["cut"]}
    straight = rank_jobs.run({**job, "seeds": [0, 1]})
    divided = {**DIVIDED["fsdp"], **fsdp}
    results = worlds[4].run(**job, seeds=[0], save=str(tmp_path), fsdp=divided)
    for result in results:
        assert_same(result["weights"], results[0]["weights"])
    assert_same(dict(read_sharded(tmp_path, ModelConfig(job["model"]))), results[0]["weights"])
    uninterrupted = worlds[4].run(**job, seeds=[0, 1], fsdp=divided)[0]["weights"]
    job = {**job, "load": str(tmp_path), "seeds": [1]}
    assert_same(worlds[4].run(**job, fsdp=divided)[1]["weights"], uninterrupted)
    others = [worlds[2].run(**job, fsdp=DIVIDED["fsdp"])[1], worlds[4].run(**job, fsdp={})[3]]
    for result in [*others, rank_jobs.run({**job, "fsdp": {}})]:
        assert_same(result["weights"], straight["weights"], atol=1e-5)


@every_combination
def test_a_checkpoint_of_one_rank_is_read_by_ranks_that_divide_matrices(worlds, model_dirs, tmp_path):
    job = {"kind": "train", "model": model_dirs["qwen2", True], "cut": DIVIDED["cut"]}
    saved = rank_jobs.run({**job, "fsdp": {}, "seeds": [0], "save": str(tmp_path)})["weights"]
    for result in worlds[4].run(**job, load=str(tmp_path), seeds=[], fsdp=DIVIDED["fsdp"]):
        assert_same(result["weights"], saved)


@every_combination
@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_an_export_holds_the_trained_weights(worlds, tmp_path, kind):
    model, out = write_model(tmp_path / "model", family_of(kind)), tmp_path / "out"
    job = {"kind": "train", "model": str(model), "config": {"load_format": "auto"}, **DIVIDED}
    trained = worlds[4].run(**job, seeds=[0], export=str(out))[0]["weights"]
    stored = load_file(out / "model.safetensors")
    assert_same({name: stored[name] for name in trained}, trained)
    assert ("lm_head.weight" in trained) == (kind == "llama")


@every_combination
def test_peers_name_the_rows_that_are_not_finite_alike(worlds, model_dirs):
    results = worlds[4].run(kind="nonfinite", model=model_dirs["qwen3", False], bad_row=5, **DIVIDED)
    assert [result["rows"] for result in results] == [[], [], [2], [2]]
    assert all(result["same"] for result in results)


@every_combination
def test_bf16_ranks_are_near_one_device(worlds, model_dirs):
    job = {"kind": "agree", "model": model_dirs["qwen3", True], "config": {"dtype": "bf16"}}
    expected = rank_jobs.run(job)
    for result in worlds[2].run(**job, **DIVIDED):
        for name, true in expected["before"].items():
            torch.testing.assert_close(result["before"][name], true, rtol=0, atol=3e-2)
        for name, true in expected["gradient"].items():
            assert result["gradient"][name].dtype == torch.float32
            assert (result["gradient"][name] - true).norm() <= 0.1 * true.norm(), name


@every_combination
def test_ranks_hold_what_the_estimate_of_their_memory_says(worlds, model_dirs):
    config = {"load_format": "dummy", "dtype": "bf16"}
    model = ModelConfig(model_dirs["qwen2", True], **config)
    size = model_size(model, "cpu")
    estimated = FsdpOptions(**DIVIDED["fsdp"]).share(size, 4, model, updated=True)
    for result in worlds[4].run(kind="memory", model=model.path, config=config, **DIVIDED):
        assert result["weights"] + result["optimizer"] == pytest.approx(estimated.at_rest, rel=0.05)
        assert result["gradients"][0] == pytest.approx(estimated.gradients, rel=0.05)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("expert_parallel_size", 2),
        ("bitwise", True),
        ("ema_decay", 0.9),
    ],
)
def test_options_that_do_not_go_with_divided_matrices_are_refused_by_the_check(option, value):
    options = FsdpOptions(tensor_model_parallel_size=2, **{option: value})
    with pytest.raises(ConfigError, match=rf"^critic\.strategy\.tensor_model_parallel_size: must be 1 with {option},"):
        options.check("critic.strategy", TrainConfig(model=ModelConfig("m")))


def test_gpus_that_do_not_divide_are_refused_by_the_check():
    config = TrainConfig(model=ModelConfig("m"), runtime=RuntimeConfig(n_gpus_per_node=3))
    with pytest.raises(ConfigError, match=rf"^{KEY}: 2 does not divide the 3 GPUs"):
        FsdpOptions(tensor_model_parallel_size=2).check("actor.strategy", config)


def test_adapters_are_refused_by_the_check():
    config = TrainConfig(model=ModelConfig("m", lora_rank=2))
    with pytest.raises(ConfigError, match=rf"^{KEY}: must be 1 with model\.lora_rank"):
        FsdpOptions(tensor_model_parallel_size=2).check("actor.strategy", config)


@pytest.mark.parametrize(
    ("family", "size", "message"),
    [
        ("qwen2", 4, "4 does not divide the model's 2 key and value heads; 1 or 2 would"),
        ("qwen2", 3, "3 does not divide the model's 4 attention heads; 1, 2 or 4 would"),
        ("qwen3_moe", 2, "must be 1: no test proves a plan for 'qwen3_moe'; those of qwen2, qwen3, "),
    ],
)
def test_a_model_that_ranks_cannot_divide_is_one_line_of_the_check(model_dirs, family, size, message):
    config = TrainConfig(model=ModelConfig(model_dirs[family, False]))
    found = FsdpOptions(tensor_model_parallel_size=size).examine("actor.strategy", config, Machine(gpus=0))
    (error,) = [each for each in found if isinstance(each, ConfigError)]
    assert str(error).startswith(f"{KEY}: {message}")


def test_a_family_without_proofs_is_refused():
    with pytest.raises(ConfigError, match="no test proves a plan for 'cohere'"):
        plan_of(CohereConfig(), 2)


def test_the_styles_of_a_plan_are_known(model_dirs):
    plan = plan_of(AutoConfig.from_pretrained(model_dirs["qwen3", True]), 2)
    assert set(plan.values()) <= STYLES.keys() and len(plan) == 9


class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, values):
        return self.one(values) * self.other(values)


def test_layers_of_one_kind_are_compiled_once(monkeypatch):
    monkeypatch.setattr(divided, "_summed", lambda values, group: values.clone())
    graphs = []

    def backend(graph, example):
        graphs.append(graph)
        return graph.forward

    ranks = divided.Ranks(1, 0, None)
    pairs = [Pair() for _ in range(3)]
    for pair in pairs:
        taken = divided.SharedInput(pair, ranks)
        for each in (pair.one, pair.other):
            divided.by_columns(each, ranks, taken)
        torch.compile(torch.nn.Sequential(pair), backend=backend)(torch.ones(2, 4)).sum().backward()
    assert len(graphs) == 1
    assert taken.given is None and taken.taken is None
