"""``replicas: auto``: the number of engines, and its reason, by model, work and machine."""

import dataclasses
from pathlib import Path

import pytest

from corerl.config.load import load
from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError
from corerl.plugins import load_plugins
from corerl_check import GIB, Machine, model_size
from corerl_testing.published_shapes import published_config
from corerl_vllm import options as vllm_options
from corerl_vllm.backend import engine_arguments
from corerl_vllm.options import VllmOptions
from corerl_vllm.replicas import Work, choose

H200 = Machine(1, 139.8 * GIB, processors=16)

MEASURED = Work(
    parameters=1_543_714_304,
    weights=3.1e9,
    overhead=2 * GIB,
    cache_per_token=28 * 1024,
    memory=0.5 * 139.8 * GIB,
    tensor_parallel=1,
    sequences=512,
    longest=640,
    processors=16,
)
"""64 × 8 responses of 128 + 512 tokens on one H200 (docs/performance.md)"""

EACH = 256 * 640 * 28 * 1024 + 3.1e9 + 2 * GIB
"""bytes of one of two engines with KV cache for 256 full sequences, weights and overhead"""


@pytest.mark.parametrize(
    ("changes", "replicas", "reason"),
    [
        ({}, 2, "512 sequences of a model of 1.5 billion"),
        ({"parameters": 494_000_000, "weights": 1e9, "cache_per_token": 12 * 1024}, 2, "0.5 billion"),
        ({"sequences": 256}, 2, "256 sequences"),
        ({"sequences": 255}, 1, "255 sequences are under way at most, and one scheduler keeps up with fewer than 256"),
        ({"parameters": 3_000_000_000}, 2, "3.0 billion"),
        ({"parameters": 3_100_000_000}, 1, "3.1 billion parameters, and the GPU sets the pace above 3"),
        ({"tensor_parallel": 2}, 1, "one copy of the model has 2 GPUs"),
        ({"memory": None}, 1, "the memory of the GPU is not known"),
        ({"memory": 2 * EACH}, 2, "KV cache for 256 sequences"),
        ({"memory": 2 * EACH - 2}, 1, "2 engines have KV cache for 255 sequences of 640 tokens each, and 256 would be"),
        ({"memory": 4e9}, 1, "KV cache for 0 sequences"),
        ({"sequences": 100_000}, 2, "100000 sequences"),  # an engine computes 1024 of them at a time
        ({"sequences": 100_000, "longest": 32_768}, 1, "and 50000 would be under way in each"),
        ({"processors": 4}, 2, ""),
        ({"processors": 3}, 1, "2 engines for each of 1 rollout workers need 4 processors, and the machine has 3"),
        ({"processors": 0}, 2, ""),  # unknown: a machine that is planned
        ({"processors": 24, "workers": 8}, 1, "each of 8 rollout workers need 25 processors"),
        ({"processors": 25, "workers": 8}, 2, ""),
    ],
)
def test_two_engines_are_chosen_if_one_is_bound_by_its_processor_and_both_fit(changes, replicas, reason):
    choice = choose(dataclasses.replace(MEASURED, **changes))
    assert choice.replicas == replicas
    assert reason in choice.reason


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("shape")
    published_config("qwen2.5-1.5b").save_pretrained(path)
    return path


def config_of(folder: Path, *overrides: str) -> TrainConfig:
    sizes = ["data.max_prompt_length=128", "data.max_response_length=512", "data.train_batch_size=64"]
    return load(TrainConfig, None, [f"model={{path: {folder}, dtype: bf16}}", *sizes, *overrides])


@pytest.mark.parametrize(
    ("overrides", "replicas"),
    [
        ([], 2),  # 64 × 8
        (["data.train_batch_size=31"], 1),  # 248
        (["data.train_batch_size=16", "trainer.max_staleness=1"], 2),  # 16 × 8 for this step and 16 × 8 for the next
        (["rollout.max_concurrent_requests=128"], 1),
        (["runtime.n_gpus_per_node=4"], 1),  # 128 for each of four rollout workers
        (["runtime.n_gpus_per_node=2"], 2),
        (["runtime.n_gpus_per_node=4", "rollout.n_gpus_per_node=1"], 2),  # one worker, on a GPU of its own
        (["runtime.n_gpus_per_node=2", "runtime.nnodes=2"], 1),
        (["data.max_response_length=32000"], 1),
    ],
)
def test_the_work_of_an_engine_is_taken_from_the_config(folder, overrides, replicas):
    config = config_of(folder, *overrides)
    choice = VllmOptions(replicas="auto").choice(model_size(config.model, "cuda"), config, H200)
    assert choice.replicas == replicas, choice.reason


def test_auto_becomes_a_number_before_the_start_and_one_on_the_cpu(folder, monkeypatch):
    config, options = config_of(folder), VllmOptions(replicas="auto")
    monkeypatch.setattr(vllm_options, "detect", lambda: H200)
    sized = options.sized(config, "cuda")
    assert sized == dataclasses.replace(options, replicas=2)
    assert engine_arguments(config.model, config.rollout, sized, "cuda")["gpu_memory_utilization"] == 0.25
    assert options.sized(config, "cpu").engines == 1
    assert VllmOptions(replicas=3).sized(config, "cuda").engines == 3
    assert options.engines == 1  # an engine without a run


def test_the_estimate_of_auto_is_that_of_the_number_it_chooses(folder):
    config = config_of(folder)
    size = model_size(config.model, "cuda")
    auto = VllmOptions(replicas="auto").generation(size, config, H200)
    two = VllmOptions(replicas=2).generation(size, config, H200)
    assert dataclasses.replace(auto, notes=()) == two
    [note] = auto.notes
    assert (note.severity, note.key) == ("note", "rollout.options.replicas")
    assert note.sentence.startswith("auto chooses 2 engines on a GPU, because the scheduler of one engine limits")
    [note] = VllmOptions(replicas="auto").generation(size, config, Machine(1, 12 * GIB)).notes
    assert note.sentence.startswith("auto chooses one engine on a GPU, because 2 engines have KV cache for 0 sequences")


def test_check_names_auto_to_a_user_of_one_engine_only_if_two_pay(folder):
    config = config_of(folder)
    size = model_size(config.model, "cuda")
    [note] = VllmOptions().generation(size, config, H200).notes
    assert note.sentence.startswith("auto would choose 2 engines, because")
    assert not VllmOptions().generation(size, config_of(folder, "data.train_batch_size=8"), H200).notes
    assert not VllmOptions(replicas=2).generation(size, config, H200).notes


def test_a_number_or_auto_is_taken_and_nothing_else():
    select = load_plugins().registries.rollout_backends.select
    assert select({"name": "vllm", "replicas": "auto"}).options.replicas == "auto"
    assert select({"name": "vllm", "replicas": 2}).options.replicas == 2
    for wrong in ("many", 0, 1.5, None):
        with pytest.raises(ConfigError, match="replicas: must be"):
            select({"name": "vllm", "replicas": wrong})
