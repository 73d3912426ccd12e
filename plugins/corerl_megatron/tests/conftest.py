import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_dirs(tmp_path_factory):
    """(kind, tied) → a folder with the config of a tiny model, whose weights come from ``load_format: dummy``."""
    from megatron_configs import CONFIGS, write_config

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
    from megatron_world import Laid, World

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
