"""What CoreRL says of the engine ``sglang``: two engines, each of which serves all claims of its model."""

from collections.abc import Iterator

import pytest
import torch

from corerl_sglang.backend import SglangBackend
from engine_claims import DENSE_CLAIMS, MOE_CLAIMS
from sglang_engine import Policy, begin_dense, begin_moe

pytestmark = pytest.mark.xdist_group("sglang")

Started = tuple[SglangBackend, Policy]


@pytest.fixture(scope="module")
def dense(engine_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    folder = tmp_path_factory.mktemp("dense")
    backend = begin_dense(folder, engine_python)
    backend.started()
    yield backend, Policy(folder, torch.float32)
    backend.close()


@pytest.fixture(scope="module")
def moe(engine_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    folder = tmp_path_factory.mktemp("moe")
    backend = begin_moe(folder, engine_python)
    backend.started()
    yield backend, Policy(folder, torch.bfloat16)
    backend.close()


@pytest.mark.parametrize("claim", DENSE_CLAIMS)
def test_of_a_dense_model_in_float32(claim: str, dense: Started):
    print(DENSE_CLAIMS[claim](*dense))


@pytest.mark.parametrize("claim", MOE_CLAIMS)
def test_of_a_mixture_of_experts_in_bf16(claim: str, moe: Started):
    print(MOE_CLAIMS[claim](*moe))
