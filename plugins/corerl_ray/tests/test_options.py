import pytest

from corerl.config.typed import build
from corerl.contracts.config import ModelConfig, RolloutConfig, TrainConfig
from corerl.errors import ConfigError
from corerl_ray.options import RayOptions


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ranks": {"actor": 2}}, "ranks must not name actor: it has one on each of the workers' places"),
        ({"ranks": {"critic": 0}}, "ranks.critic is 0, and must be at least 1"),
        ({"apart": ["critic"]}, "apart names critic, whose number of ranks is missing: set ranks.critic"),
    ],
)
def test_ranks_that_no_model_can_have_are_refused(given, message):
    with pytest.raises(ConfigError, match=f"^runtime.options: {message}"):
        build(RayOptions, given, "runtime.options")


def test_pieces_of_weights_do_not_reach_an_engine_over_several_machines():
    def check(transport, gpus):
        rollout = RolloutConfig(tensor_model_parallel_size=8, nnodes=2, n_gpus_per_node=gpus)
        options = RayOptions(weights_transport=transport)
        options.check("runtime", TrainConfig(ModelConfig(path="none"), rollout=rollout))

    check("exchange", 8)
    check("broadcast", 4)
    with pytest.raises(ConfigError, match="weights_transport: exchange writes to memory beside each rank of an engine"):
        check("exchange", 4)
