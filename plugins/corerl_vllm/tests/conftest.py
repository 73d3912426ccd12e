"""The environment that holds vLLM, and backends that run there."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from corerl.cli.main import run
from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl_testing.tiny_model import tiny_model
from corerl_vllm.backend import VllmBackend
from corerl_vllm.options import VllmOptions

sys.path.insert(0, str(Path(__file__).parent))

from vllm_engine import DEVICE, PYTHON, WITHOUT


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Logs that errors name do not go to the user's folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def engine_python() -> str:
    """An interpreter that finds vLLM."""
    if PYTHON is None:
        pytest.skip(WITHOUT)
    return PYTHON


@pytest.fixture(scope="session")
def device() -> str:
    """``cpu``, or what ``CORERL_TEST_DEVICE`` names."""
    return DEVICE


@pytest.fixture(scope="session")
def start(device: str) -> Iterator[Callable[..., VllmBackend]]:
    """Backends of the tiny model by their options; closed at the end."""
    made: list[VllmBackend] = []

    def start(model: dict[str, Any] | None = None, rollout: RolloutConfig | None = None, **options: Any) -> VllmBackend:
        config = ModelConfig(**{"path": str(tiny_model()), "dtype": "fp32", **(model or {})})
        deadlines = {"start_timeout": 300.0, "timeout": 120.0}  # the defaults are those of large models
        options = {"enforce_eager": True, "gpu_memory_utilization": 0.1, **deadlines, **options}
        made.append(VllmBackend(config, rollout or RolloutConfig(), device=device, options=VllmOptions(**options)))
        made[-1].started()
        return made[-1]

    yield start
    for backend in made:
        backend.close()


CONFIG = """
model: {{path: {folder}/model}}
data: {{train_files: [{folder}/data/train.parquet], val_files: [{folder}/data/test.parquet], train_batch_size: 8,
       max_prompt_length: 32, max_response_length: 8}}
actor: {{device: cpu, ppo_mini_batch_size: 8, optim: {{lr: 1e-2}}}}
rollout: {{n: 4}}
trainer: {{total_training_steps: 2, test_freq: 1, output_dir: {folder}/runs, log_rollouts_freq: 1}}
tracking: {{loggers: []}}
"""


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``data/``, ``model/`` and ``config.yaml``."""
    for needed in ("corerl_hf", "corerl_fsdp", "corerl_grpo", "corerl_rewards"):
        pytest.importorskip(needed)
    folder = tmp_path_factory.mktemp("material")
    sizes = ["--operations", "+", "--max-operand", "9", "--train-size", "40", "--test-size", "8", "--sft-size", "8"]
    assert run(["prepare", "arithmetic", "--out", str(folder / "data"), *sizes]) == 0
    shape = ["--vocab-size", "300", "--hidden-size", "64", "--layers", "1", "--heads", "2", "--kv-heads", "1"]
    corpus = ["--corpus", str(folder / "data" / "train.parquet"), "--initializer-range", "0.1"]
    assert run(["tiny-model", "--out", str(folder / "model"), *corpus, *shape]) == 0
    (folder / "config.yaml").write_text(CONFIG.format(folder=folder))
    return folder
