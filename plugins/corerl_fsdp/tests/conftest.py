import sys
from pathlib import Path

import pytest
import torch

from corerl_testing.ranks import World
from families import model_folders, write_config

sys.path.insert(0, str(Path(__file__).parent))

FAMILIES = ("qwen2", "qwen3", "llama")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session", params=FAMILIES)
def model_dir(request, tmp_path_factory):
    """A folder with the config of a tiny model; its weights come from ``load_format: dummy``."""
    folder = tmp_path_factory.mktemp(request.param)
    return write_config(folder, request.param, tie_word_embeddings=request.param != "llama")


@pytest.fixture(scope="session")
def model_dirs(tmp_path_factory):
    """(family, tied) → such a folder."""
    return model_folders((*FAMILIES, "qwen3_moe"), tmp_path_factory.mktemp)


@pytest.fixture(scope="session")
def worlds(at_the_end_of_the_group):
    """Number of ranks → their world, started when first asked for."""
    from rank_jobs import run

    class Worlds(dict):
        def __missing__(self, size):
            self[size] = World(size, run)
            at_the_end_of_the_group(lambda: self.pop(size).close())
            return self[size]

    return Worlds()
