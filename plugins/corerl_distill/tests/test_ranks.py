"""Strategy fsdp on two ranks: rows dealt out, or shared with a slice of the tokens each."""

import os

import distill_ranks
import pytest
import torch
from teaching import Class, rollouts, write_model

from corerl_distill.options import DistillOptions, TeacherOptions
from corerl_testing.ranks import World

pytestmark = pytest.mark.skipif(
    "CORERL_EVERY_COMBINATION" not in os.environ, reason="starts two ranks: CORERL_EVERY_COMBINATION=1"
)


@pytest.fixture(scope="module")
def world():
    started = World(2, distill_ranks.update)
    yield started
    started.close()


@pytest.mark.parametrize("sharing", [1, 2])
@pytest.mark.parametrize("form", ["full", "top_k"])
def test_two_ranks_have_the_gradient_of_one_device(world, tmp_path, form, sharing):
    """The policy and its average are teachers too: their output layer is sharded."""
    teachers = {
        "model": TeacherOptions(path=str(write_model(tmp_path / "teacher", hidden=48, seed=1)), data_sources=["sums"]),
        "self": TeacherOptions(weights="policy", context="{prompt} It is {ground_truth}.", data_sources=["code"]),
        "past": TeacherOptions(weights="ema", context="{prompt} It is {ground_truth}."),
    }
    options = DistillOptions(teachers=teachers, form=form, divergence="jsd", top_k=8, chunk_size=3)
    taught = Class(write_model(tmp_path / "student"), options, ema_decay=0.5)
    batch = taught.batch(rollouts(["sums", "code", "sums", "code", "past"]))
    true, gradient = taught.loss_and_gradient(batch)
    for loss, found in world.run(config=taught.config, options=options, batch=batch, sharing=sharing):
        assert loss == pytest.approx(true, abs=1e-6)
        for name, each in gradient.items():
            given = torch.from_numpy(found[name])
            assert (given - each).norm() <= 1e-5 * each.norm() + 1e-7, name
