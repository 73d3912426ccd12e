"""Two ranks of ``fsdp`` over gloo, with pairs that a runtime divides, beside ``torch`` on one device."""

import pytest
import torch

from corerl.contracts.config import ModelConfig
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl_testing.ranks import World
from corerl_testing.tiny_model import tiny_model

pytest.importorskip("corerl_fsdp")
pytestmark = pytest.mark.xdist_group("ranks")  # whose processes are started from one


@pytest.fixture(scope="module")
def two_ranks():
    from supervised_jobs import run

    world = World(2, run)
    yield world
    world.close()


@pytest.mark.parametrize("head", ["lm", "score"])
def test_two_ranks_take_the_step_of_one_device(head, two_ranks):
    from supervised_jobs import OPTIM, objective, of_head

    from corerl_fsdp.single_device import SingleDeviceStrategy

    model, limit = ModelConfig(path=str(tiny_model()), dtype="fp32"), MicroBatching(max_sequences=100)
    alone = SingleDeviceStrategy(StrategySpec(model, "cpu", limit, OPTIM, grad_clip=1e9, head=head))
    means, weights = alone.update(of_head(head), objective(head)), dict(alone.weights())
    for metrics, own in two_ranks.run(model=model.path, head=head):
        assert metrics.keys() == means.keys()
        for name, (total, count) in metrics.items():
            assert count == float(means[name].count), name
            assert total / count == pytest.approx(means[name].value, rel=1e-5, abs=1e-5), name
        assert own.keys() == weights.keys()
        for name, weight in weights.items():
            torch.testing.assert_close(own[name], weight, atol=1e-5, rtol=1e-5)
