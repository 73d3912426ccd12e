import pytest
import torch
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

CONFIGS = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "llama": LlamaConfig}


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session", params=CONFIGS)
def model_dir(request, tmp_path_factory):
    """A folder with the config of a tiny model; its weights come from ``load_format: dummy``."""
    folder = tmp_path_factory.mktemp(request.param)
    CONFIGS[request.param](
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=request.param != "llama",
        architectures=[f"{request.param.capitalize()}ForCausalLM"],
    ).save_pretrained(folder)
    return folder
