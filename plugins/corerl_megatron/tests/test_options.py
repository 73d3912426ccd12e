"""Memory of a rank, by hand: Qwen3-30B-A3B has 48 layers of 128 experts with three matrices of 2,048 x 768."""

import dataclasses

import pytest

from corerl.contracts.config import ModelConfig
from corerl_check import ModelSize
from corerl_megatron.options import MegatronOptions

MODEL = ModelConfig("x", dtype="bf16")
EXPERTS = 48 * 128 * 3 * 2048 * 768
DENSE = 1_541_093_376
SIZE = ModelSize(
    parameters=DENSE + EXPERTS,
    trained=DENSE + EXPERTS,
    layer=0,
    beside=0,
    layers=48,
    hidden=2048,
    intermediate=6144,
    heads=32,
    key_value_heads=4,
    head_size=128,
    vocabulary=151_936,
    bytes=2,
    positions=32_768,
    in_experts=EXPERTS,
)


@pytest.mark.parametrize(
    ("options", "held", "stepped"),
    [
        ({}, DENSE + EXPERTS, (DENSE + EXPERTS) / 8),
        ({"expert_model_parallel_size": 8}, DENSE + EXPERTS / 8, (DENSE + EXPERTS) / 8),
        ({"tensor_model_parallel_size": 4}, DENSE / 4 + EXPERTS, (DENSE + EXPERTS) / 8),
        (
            {"tensor_model_parallel_size": 4, "expert_model_parallel_size": 4, "pipeline_model_parallel_size": 2},
            DENSE / 8 + EXPERTS / 8,
            (DENSE + EXPERTS) / 8,
        ),
        (
            {"expert_model_parallel_size": 4, "use_distributed_optimizer": False},
            DENSE + EXPERTS / 4,
            DENSE + EXPERTS / 4,
        ),
    ],
)
def test_expert_ranks_divide_experts_and_tensor_ranks_all_else(options, held, stepped):
    """Of 8 ranks: bf16 weights, float32 gradients, and 12 bytes of optimizer for a parameter."""
    share = MegatronOptions(**options).share(SIZE, 8, MODEL, updated=True)
    assert (share.weights, share.gradients) == pytest.approx((2 * held, 4 * held))
    assert share.optimizer == pytest.approx(12 * stepped)


def test_a_reference_has_weights_alone():
    share = MegatronOptions(expert_model_parallel_size=8).share(SIZE, 8, MODEL, updated=False)
    assert (share.weights, share.gradients, share.optimizer) == pytest.approx((2 * (DENSE + EXPERTS / 8), 0, 0))


def test_a_dense_model_has_nothing_for_expert_ranks():
    dense = dataclasses.replace(SIZE, parameters=DENSE, trained=DENSE, in_experts=0)
    alone = MegatronOptions().share(dense, 8, MODEL, updated=True)
    assert MegatronOptions(expert_model_parallel_size=8).share(dense, 8, MODEL, updated=True) == alone
