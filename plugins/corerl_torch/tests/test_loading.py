"""Loading a model: random parts are made on purpose or not at all."""

import importlib.util
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, Qwen2Config, Qwen2ForCausalLM

from corerl.contracts.config import ModelConfig
from corerl.errors import ConfigError, ModelError
from corerl.models import (
    cpu_threads,
    resolve_device,
)
from corerl_testing.tiny_model import tiny_model
from corerl_torch.loading import load_causal_lm, load_model, model_shape, own_random_state
from families import write_config


def load(path, head, seed=0):
    return load_model(ModelConfig(path=str(path)), head, device="cpu", dtype=torch.float32, seed=seed)


def test_a_new_value_head_is_seeded_and_prints_nothing(capfd):
    state = torch.get_rng_state()
    first, again, other = (load(tiny_model(), "value", seed).score.weight for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)
    assert capfd.readouterr() == ("", "")


def test_a_device_that_is_not_there_is_an_error_of_the_key_that_asks_for_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for arguments, key in ((("cuda",), "actor.device"), (("cuda", "trainer.device"), "trainer.device")):
        with pytest.raises(ConfigError, match=f"^{key}: cuda is asked for"):
            resolve_device(*arguments)


def test_beside_a_gpu_a_few_threads_do_unless_the_environment_says_how_many(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [cpu_threads(available, "cuda") for available in (0, 2, 64)] == [1, 2, 8]
    assert cpu_threads(64, "cpu") == 64
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    assert cpu_threads(16, "cuda") == 16


def test_of_eight_experts_the_two_that_a_token_meets_count(tmp_path):
    model = load_model(ModelConfig(str(write_config(tmp_path, "qwen3_moe"))), "lm", device="meta", dtype=torch.float32)
    layers, matrices = 2, 3 * 32 * 16
    assert model_shape(model, "cpu").parameters == model.num_parameters() - layers * (8 - 2) * matrices


@pytest.mark.parametrize("head", ["value", "score"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_family_whose_head_has_another_name_has_no_critic(tmp_path, head, device):
    config = GPTNeoXConfig(
        vocab_size=259, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    GPTNeoXForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"^model\.path: GPTNeoXForTokenClassification has no head 'score', which"):
        load_model(ModelConfig(path=str(tmp_path)), head, device=device, dtype=torch.float32)


def test_weights_that_are_missing_are_an_error(tmp_path):
    folder = tmp_path / "model"
    load(tiny_model(), "lm").save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for head in ("lm", "value"):
        with pytest.raises(ModelError, match=r"lacks 1 of the weights, such as 'model\.norm\.weight'"):
            load(folder, head)


def test_tied_weights_with_two_values_are_an_error_and_equal_ones_are_not(tmp_path):
    load(tiny_model(), "lm").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    save_file(weights | {"lm_head.weight": embedding.clone()}, tmp_path / "model.safetensors", {"format": "pt"})
    loaded = load(tmp_path, "lm")
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    save_file(weights | {"lm_head.weight": 2 * embedding}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"have different values for lm_head\.weight and model\.embed_tokens\.weight"):
        load(tmp_path, "lm")
    untied = ModelConfig(str(tmp_path), override_config={"tie_word_embeddings": False})
    assert load_model(untied, "lm", device="cpu", dtype=torch.float32).lm_head.weight.equal(2 * embedding)
    load(tmp_path, "value")


def small(folder, **changes):
    """A model folder whose config.json is changed afterwards."""
    config = Qwen2Config(vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(written | changes))
    return ModelConfig(str(folder))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": 30}, r"lm_head.weight has the shape \(20, 8\), and the config asks for \(30, 8\), and 1 more"),
        ({"hidden_size": 16}, r"lm_head.weight has the shape \(20, 8\), .* \(20, 16\), and \d+ more"),
    ],
)
def test_weights_of_other_shapes_than_those_of_the_config_are_one_line(tmp_path, changes, words):
    with pytest.raises(ModelError, match=f"do not fit its config.json: .*{words}"):
        load_causal_lm(small(tmp_path, **changes), device="cpu", dtype=torch.float32)


def test_weights_that_are_cut_off_are_one_line(tmp_path):
    model = small(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"the weights in .* are damaged: "):
        load_causal_lm(model, device="cpu", dtype=torch.float32)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_act": "nosuch"}, "cannot be loaded: config.json has an unknown value or a wrong number: 'nosuch'"),
        ({"intermediate_size": -1}, "cannot be loaded: config.json: .* negative dimension"),
    ],
)
def test_a_wrong_value_of_the_config_is_one_line(tmp_path, values, message):
    with pytest.raises(ModelError, match=message):
        load_causal_lm(small(tmp_path, **values), device="cpu", dtype=torch.float32)


def test_an_attention_whose_package_is_missing_is_one_line():
    if importlib.util.find_spec("flash_attn") is not None:
        pytest.skip("flash_attn is installed")
    model = ModelConfig(path=str(tiny_model()), attn_implementation="flash_attention_2")
    with pytest.raises(ModelError, match=r"cannot be loaded: FlashAttention2 .* installed") as caught:
        load_model(model, "lm", device="cpu", dtype=torch.float32)
    assert "\n" not in str(caught.value)


def test_random_weights_are_the_same_in_every_dtype_and_as_they_are_on_the_meta_device():
    model = ModelConfig(str(tiny_model()), load_format="dummy")
    whole, half, shapes = (
        dict(load_causal_lm(model, device=device, dtype=dtype, seed=3).named_parameters())
        for device, dtype in (("cpu", torch.float32), ("cpu", torch.bfloat16), ("meta", torch.bfloat16))
    )
    for name, tensor in whole.items():
        assert torch.equal(tensor.to(torch.bfloat16), half[name])
        assert (shapes[name].shape, shapes[name].dtype) == (tensor.shape, torch.bfloat16)


def test_an_own_random_state_follows_its_seed_and_leaves_no_trace():
    def drawn(seed):
        with own_random_state("cpu", seed):
            return torch.rand(3).tolist()

    torch.rand(1)
    before = torch.get_rng_state()
    assert drawn(1) == drawn(1) != drawn(2)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_process_that_begins_to_use_cuda_later_finds_it_unseeded(monkeypatch):
    """torch.manual_seed queues a seed for CUDA's generators."""
    queued = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", queued.append)
    with own_random_state("cpu", 1):
        pass
    assert queued == []
    torch.manual_seed(1)
    assert queued == [1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_generator_of_a_device_is_left_alone():
    torch.rand(1, device="cuda")
    before = torch.cuda.get_rng_state()
    for device in ("cpu", "cuda"):
        with own_random_state(device, 1):
            torch.rand(1, device=device)
    assert torch.equal(torch.cuda.get_rng_state(), before)
