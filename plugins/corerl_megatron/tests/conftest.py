import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

sys.path.insert(0, str(Path(__file__).parent))

CONFIGS = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "llama": LlamaConfig, "qwen3_moe": Qwen3MoeConfig}
NAMES = {"qwen2": "Qwen2", "qwen3": "Qwen3", "llama": "Llama", "qwen3_moe": "Qwen3Moe"}


def write_config(folder, kind, **changes):
    """A tiny model's config; 51 tokens do not divide by 2 or 4."""
    shape = {"vocab_size": 51, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    if kind == "qwen3_moe":
        shape |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}
    CONFIGS[kind](architectures=[f"{NAMES[kind]}ForCausalLM"], **{**shape, **changes}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_dirs(tmp_path_factory):
    """(kind, tied) → a folder with the config of a tiny model, whose weights come from ``load_format: dummy``."""
    return {
        (kind, tied): str(write_config(tmp_path_factory.mktemp(kind), kind, tie_word_embeddings=tied))
        for kind in CONFIGS
        for tied in (True, False)
    }


@pytest.fixture(scope="session")
def worlds():
    """(number of ranks, options) → what runs jobs in a world of so many, laid out so; the one before ends.

    A layout is dozens of gloo groups, each with threads that poll, and only the end of a process ends them.
    """
    from world import Laid, World

    living = {}

    def end():
        for _, world in living.values():
            world.close()
        living.clear()

    def world(size, **options):
        if size not in living or living[size][0] != options:
            end()
            living[size] = options, World(size)
        return Laid(living[size][1], options)

    yield world
    end()
