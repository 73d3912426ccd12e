import pytest
from vllm_engine import PYTHON, WITHOUT, one_more_engine

from corerl_testing import conformance_tests

pytestmark = [pytest.mark.skipif(PYTHON is None, reason=WITHOUT), pytest.mark.xdist_group("vllm")]

OPTIONS = {"python": PYTHON, "enforce_eager": True, "gpu_memory_utilization": 0.1}

test_conformance = conformance_tests("corerl-vllm", options={"vllm": OPTIONS})

test_conformance_of_replicas = one_more_engine(
    conformance_tests("corerl-vllm", options={"vllm": {**OPTIONS, "replicas": 2}})
)
