"""The host does not wait for the device in a pass of a model: it would start the next operations too late."""

from pathlib import Path
from typing import Any

import pytest
import torch
from test_token_model import EVERYTHING
from test_token_model import token_model as model_of

from corerl.contracts import experience, token_columns
from corerl_fsdp import token_model
from corerl_testing.training_ranks import AllOutputs, rank_batch
from families import write_config
from waits import OnDevice


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> Any:
    def follow(model: torch.nn.Module) -> OnDevice:
        mode = OnDevice(model.parameters())
        for module in (token_model, token_columns, experience):
            monkeypatch.setattr(module, "moved", mode.moved)
        return mode

    return follow


@pytest.mark.parametrize("packed", [False, True])
def test_neither_pass_waits(model_dir: Path, packed: bool, on_device: Any) -> None:
    model, batch = model_of(model_dir, use_remove_padding=packed, logits_chunk_size=7), rank_batch()
    with on_device(model) as mode:
        there = batch.to("cpu")
        AllOutputs()(model(batch, EVERYTHING, there), there).loss.backward()
    assert mode.waits == []


def test_a_search_in_a_mask_is_found(tmp_path: Path, on_device: Any) -> None:
    model = model_of(write_config(tmp_path, "qwen2") or tmp_path)
    with on_device(model) as mode:
        mask = mode.moved(torch.tensor([True, False]), "cpu")
        torch.arange(2)[mask]
    assert mode.waits
