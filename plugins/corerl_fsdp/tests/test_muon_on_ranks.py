"""Muon gathers each matrix that ranks share: the weights are those of one device, and checkpoints go on."""

import os
from pathlib import Path
from typing import Any

import pytest
import rank_jobs
import torch

pytestmark = [
    pytest.mark.xdist_group("ranks"),
    pytest.mark.skipif("CORERL_EVERY_COMBINATION" not in os.environ, reason="CORERL_EVERY_COMBINATION=1 runs them"),
]


def test_two_ranks_train_as_one_device_and_go_on_from_a_checkpoint(
    worlds: Any, model_dirs: Any, tmp_path: Path
) -> None:
    job = {
        "kind": "train",
        "model": model_dirs["qwen2", True],
        "optim": {"optimizer": "muon"},
        "cut": {"max_tokens": 30},
    }
    alone = rank_jobs.run({**job, "seeds": [0, 1, 2, 3]})["weights"]
    straight = worlds[2].run(**job, fsdp={}, seeds=[0, 1, 2, 3])[0]["weights"]
    worlds[2].run(**job, fsdp={}, seeds=[0, 1], save=str(tmp_path))
    resumed = worlds[2].run(**job, fsdp={}, load=str(tmp_path), seeds=[2, 3])[0]["weights"]
    adamw = worlds[2].run(**{**job, "optim": {}}, fsdp={}, seeds=[0, 1, 2, 3])[0]["weights"]
    divided = worlds[4].run(**job, fsdp={"tensor_model_parallel_size": 2}, seeds=[0, 1, 2, 3])[0]["weights"]
    torch.testing.assert_close(straight, alone, rtol=0, atol=2e-5)
    torch.testing.assert_close(divided, alone, rtol=0, atol=2e-5)
    torch.testing.assert_close(resumed, straight, rtol=0, atol=0)
    assert any((adamw[name] - straight[name]).abs().max() > 1e-3 for name in adamw)
