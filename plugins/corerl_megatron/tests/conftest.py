import sys
from pathlib import Path

import pytest
import torch

from corerl_testing.ranks import World
from families import FAMILIES, model_folders, write_config

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_dirs(tmp_path_factory):
    """(family, tied) → a folder with the config of a tiny model, whose weights come from ``load_format: dummy``."""
    folders = model_folders(FAMILIES, tmp_path_factory.mktemp)
    for family in ("deepseek_v3", "glm4_moe"):  # no layer with experts, which the CPU does not run
        folder = tmp_path_factory.mktemp(family)
        folders[f"{family} dense", False] = str(
            write_config(folder, family, first_k_dense_replace=2, tie_word_embeddings=False)
        )
    return folders


class Laid:
    """A world with ranks laid out as the options say."""

    def __init__(self, world, options):
        self.world, self.options = world, options

    def run(self, **job):
        return self.world.run(layout=self.options, **job)


@pytest.fixture(scope="session")
def worlds(at_the_end_of_the_group):
    """(number of ranks, options) → what runs jobs in a world of so many, laid out so; the one before ends.

    A layout is dozens of gloo groups, each with threads that poll, and only the end of a process ends them.
    """
    from megatron_jobs import run

    living = {}

    def end():
        for _, world in living.values():
            world.close()
        living.clear()

    def world(size, **options):
        if size not in living or living[size][0] != options:
            end()
            at_the_end_of_the_group(end)
            living[size] = options, World(size, run)
        return Laid(living[size][1], options)

    return world
