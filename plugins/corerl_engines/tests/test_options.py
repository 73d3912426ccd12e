import dataclasses
import re

import pytest

from corerl.contracts.config import ModelConfig, RolloutConfig, TrainConfig
from corerl.contracts.options import check_ranges
from corerl.errors import ConfigError
from corerl_check.machine import GIB, Machine
from corerl_check.size import ModelSize
from corerl_engines.options import EngineOptions, check_engine_args


class Typed(EngineOptions):
    ours = ("dtype",)


def test_every_option_says_what_it_is_for() -> None:
    assert all(field.metadata["help"] for field in dataclasses.fields(EngineOptions))


@pytest.mark.parametrize("name", ["max_model_len", "bucket_mb"])
def test_a_number_below_one_is_refused(name: str) -> None:
    options = EngineOptions()
    setattr(options, name, 1)
    check_ranges(options, "rollout.options")
    setattr(options, name, 0)
    with pytest.raises(ConfigError, match=rf"rollout\.options\.{name}"):
        check_ranges(options, "rollout.options")


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("tp_size", "rollout.tensor_model_parallel_size"),
        ("tensor_parallel_size", "rollout.tensor_model_parallel_size"),
        ("bucket_mb", "rollout.options.bucket_mb"),
        ("dtype", "the backend"),
        ("data-parallel-size", "rollout.data_parallel_size"),
        ("--max-model-len", "rollout.options.max_model_len"),
    ],
)
def test_an_argument_that_is_set_elsewhere_is_refused_with_the_place(name: str, where: str) -> None:
    check_engine_args(Typed(engine_args={"max_num_seqs": 7}))
    with pytest.raises(ConfigError, match=rf"engine_args\.{name}: is set by {re.escape(where)} already"):
        check_engine_args(Typed(engine_args={"max_num_seqs": 7, name: 2}))


def test_a_flag_of_a_command_line_is_refused_with_its_argument() -> None:
    with pytest.raises(ConfigError, match="max-num-seqs: is a flag of a command line: write max_num_seqs"):
        check_engine_args(Typed(engine_args={"max-num-seqs": 7}))


def test_the_cache_of_a_device_has_what_the_share_leaves_beside_weights_and_overhead() -> None:
    size = ModelSize(
        parameters=4 * 2**30,
        trained=0,
        layer=0,
        beside=0,
        layers=3,
        hidden=8,
        intermediate=8,
        heads=8,
        key_value_heads=4,
        head_size=16,
        vocabulary=9,
        bytes=2,
        positions=100,
    )
    config = TrainConfig(ModelConfig(path="model"), rollout=RolloutConfig(tensor_model_parallel_size=2))
    options = EngineOptions(gpu_memory_utilization=0.25)
    share = options.generation(size, config, Machine(1, 80 * GIB))
    assert (share.weights, share.other, share.kv_cache) == (4 * GIB, 2 * GIB, 14 * GIB)
    assert share.bytes_per_token == size.cache_bytes / 2
    quantized = EngineOptions(gpu_memory_utilization=0.25, quantization="fp8").generation(size, config, Machine(1))
    assert quantized.weights == (size.parameters + size.beside) / 2  # two bytes of each parameter beside the layers
    assert options.generation(size, config, Machine(1, 8 * GIB)).kv_cache == 0.0
    assert options.generation(size, config, Machine(1, None)).kv_cache is None


def test_a_length_that_is_less_than_the_longest_row_is_an_error_before_the_start() -> None:
    config = TrainConfig(ModelConfig(path="model"))
    config.data.max_prompt_length, config.data.max_response_length = 100, 28
    EngineOptions(max_model_len=128).check("rollout.name", config)
    EngineOptions().check("rollout.name", config)
    with pytest.raises(ConfigError, match=r"rollout.options.max_model_len: is 127, .* = 100 \+ 28 = 128 tokens"):
        EngineOptions(max_model_len=127).check("rollout.name", config)
