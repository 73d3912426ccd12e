import os

import pytest
import torch

from corerl_testing import conformance_tests

PYTHON = os.environ.get("CORERL_SGLANG_PYTHON")

pytestmark = [
    pytest.mark.skipif(PYTHON is None, reason="no environment with SGLang: set CORERL_SGLANG_PYTHON"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="SGLang needs a CUDA device"),
    pytest.mark.xdist_group("sglang"),
]

OPTIONS = {
    "python": PYTHON,
    "disable_cuda_graph": True,
    "gpu_memory_utilization": 0.1,
    "engine_args": {"max_total_tokens": 300_000},
}

test_conformance = conformance_tests("corerl-sglang", options={"sglang": OPTIONS})
