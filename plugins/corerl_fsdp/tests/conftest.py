import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

sys.path.insert(0, str(Path(__file__).parent))

CONFIGS = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "llama": LlamaConfig}


def write_config(folder, kind, **changes):
    shape = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, **changes}
    CONFIGS[kind](architectures=[f"{kind.capitalize()}ForCausalLM"], **shape).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session", params=CONFIGS)
def model_dir(request, tmp_path_factory):
    """A folder with the config of a tiny model; its weights come from ``load_format: dummy``."""
    folder = tmp_path_factory.mktemp(request.param)
    return write_config(folder, request.param, tie_word_embeddings=request.param != "llama")


@pytest.fixture(scope="session")
def model_dirs(tmp_path_factory):
    """(kind, tied) → such a folder."""
    return {
        (kind, tied): str(write_config(tmp_path_factory.mktemp(kind), kind, tie_word_embeddings=tied))
        for kind in CONFIGS
        for tied in (True, False)
    }


@pytest.fixture(scope="session")
def worlds():
    """Number of ranks → their world, started when first asked for."""
    from world import World

    class Worlds(dict):
        def __missing__(self, size):
            self[size] = World(size)
            return self[size]

    started = Worlds()
    yield started
    for world in started.values():
        world.close()
