import pytest
from transformers import Qwen2Config, Qwen3MoeConfig

from corerl.contracts.config import RolloutConfig
from corerl.errors import ConfigError
from corerl_engines.parallel import check_parallel as check

SHAPE: dict[str, int] = {
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "hidden_size": 1536,
    "intermediate_size": 8960,
}


def check_parallel(config: Qwen2Config, size: int, device: str) -> None:
    check(config, RolloutConfig(tensor_model_parallel_size=size), device)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_sizes_that_divide_heads_widths_and_vocabulary_pass(size: int):
    check_parallel(Qwen2Config(vocab_size=151936, **SHAPE), size, "cpu")


@pytest.mark.parametrize(
    ("size", "wrong"),
    [
        (5, "12 attention heads"),
        (3, r"an intermediate size of 8960"),
        (24, "12 attention heads"),
    ],
)
def test_other_sizes_are_refused_with_those_that_fit(size: int, wrong: str):
    with pytest.raises(ConfigError, match=rf"tensor_model_parallel_size: the model has {wrong}.*: 1, 2, 4 can$"):
        check_parallel(Qwen2Config(vocab_size=151936, **SHAPE), size, "cpu")


def test_the_vocabulary_counts_as_the_engines_fill_it_up():
    shape = {**SHAPE, "intermediate_size": 9216}
    with pytest.raises(ConfigError, match=r"a vocabulary of 100 \(filled up to 128\)"):
        check_parallel(Qwen2Config(vocab_size=100, **{**shape, "num_key_value_heads": 12}), 3, "cpu")


def test_key_value_heads_are_shared_or_repeated():
    shape = {**SHAPE, "num_attention_heads": 16, "num_key_value_heads": 6}
    check_parallel(Qwen2Config(vocab_size=64, **shape), 2, "cpu")
    with pytest.raises(ConfigError, match="6 key-value heads"):
        check_parallel(Qwen2Config(vocab_size=64, **shape), 4, "cpu")


def test_more_gpus_than_there_are_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(ConfigError, match="2 GPUs are asked for and 1 are here"):
        check_parallel(Qwen2Config(vocab_size=64, **SHAPE), 2, "cuda")


def test_stages_have_layers_and_data_parallel_ranks_divide_experts():
    model = Qwen2Config(vocab_size=64, num_hidden_layers=3, **SHAPE)
    check(model, RolloutConfig(pipeline_model_parallel_size=3, tensor_model_parallel_size=2), "cpu")
    with pytest.raises(ConfigError, match=r"pipeline_model_parallel_size: is 4, and the model has 3 layers: set at mo"):
        check(model, RolloutConfig(pipeline_model_parallel_size=4), "cpu")
    with pytest.raises(ConfigError, match=r"data_parallel_size: is 2, and the model has no experts to divide: set 1;"):
        check(model, RolloutConfig(data_parallel_size=2), "cpu")
    experts = Qwen3MoeConfig(vocab_size=64, num_experts=4, num_experts_per_tok=2, **SHAPE)
    check(experts, RolloutConfig(data_parallel_size=2), "cpu")


def test_gpus_are_those_of_all_ranks_on_a_node(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    four = RolloutConfig(tensor_model_parallel_size=2, pipeline_model_parallel_size=2)
    check(Qwen2Config(vocab_size=64, **SHAPE), four, "cuda", nodes=2)
    with pytest.raises(ConfigError, match="4 GPUs are asked for and 2 are here"):
        check(Qwen2Config(vocab_size=64, **SHAPE), four, "cuda")
