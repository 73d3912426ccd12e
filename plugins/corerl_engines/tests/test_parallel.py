import pytest
from transformers import Qwen2Config

from corerl.errors import ConfigError
from corerl_engines.parallel import check_parallel

SHAPE = {"num_attention_heads": 12, "num_key_value_heads": 2, "hidden_size": 1536, "intermediate_size": 8960}


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
