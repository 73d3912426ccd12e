"""AdamW with moments of 8 bits on ranks: each encodes its own part, and checkpoints hold the moments of AdamW."""

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

Weights = dict[str, torch.Tensor]


def distance(one: Weights, other: Weights) -> float:
    return float(torch.cat([(one[name] - other[name]).flatten() for name in one]).norm())


def test_two_ranks_train_nearly_as_one_device_and_other_ranks_and_adamw_go_on(
    worlds: Any, model_dirs: Any, tmp_path: Path
) -> None:
    optim = {"optimizer": {"name": "adamw_8bit", "block_size": 16, "min_8bit_size": 1}}
    job = {"kind": "train", "model": model_dirs["qwen2", True], "optim": optim, "cut": {"max_tokens": 30}}
    start, adamw, alone = (
        rank_jobs.run({**job, "optim": used, "seeds": seeds})["weights"]
        for used, seeds in (({}, []), ({}, [0, 1, 2, 3]), (optim, [0, 1, 2, 3]))
    )
    moved = distance(adamw, start)
    straight = worlds[2].run(**job, fsdp={}, seeds=[0, 1, 2, 3])[0]["weights"]
    assert 1e-4 * moved < distance(straight, adamw) < 0.1 * moved
    assert distance(straight, alone) < 0.05 * moved
    worlds[2].run(**job, fsdp={}, seeds=[0, 1], save=str(tmp_path))
    go_on = {"fsdp": {}, "load": str(tmp_path), "seeds": [2, 3]}
    resumed = worlds[2].run(**job, **go_on)[0]["weights"]
    torch.testing.assert_close(resumed, straight, rtol=0, atol=0)
    others = [worlds[4].run(**job, **go_on), worlds[2].run(**{**job, "optim": {}}, **go_on)]
    afresh = worlds[2].run(**job, **{**go_on, "fsdp": {"load_contents": ["model"]}})[0]["weights"]
    for each in others:
        assert distance(each[0]["weights"], straight) < 0.1 * moved < distance(afresh, straight)
