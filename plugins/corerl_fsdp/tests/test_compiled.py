"""``compile: true`` changes no number. The graphs are traced as ever, and run as they are: a compiler takes minutes."""

import functools

import pytest
import rank_jobs
import torch

from corerl.testing.families import write_config
from corerl_fsdp import token_statistics


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    token_statistics._compile.cache_clear()
    torch._dynamo.reset()
    yield
    token_statistics._compile.cache_clear()
    torch._dynamo.reset()


def test_compiled_layers_and_statistics_train_alike(tmp_path):
    write_config(tmp_path, "qwen2", num_hidden_layers=1)
    config = {"enable_gradient_checkpointing": True}
    job = {"kind": "train", "model": str(tmp_path), "config": config, "seeds": [0]}
    plain = rank_jobs.run(job)["weights"]
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    compiled = rank_jobs.run({**job, "fsdp": {"compile": True, "logits_chunk_size": 41}})["weights"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > before
    for name, true in plain.items():
        torch.testing.assert_close(compiled[name], true, rtol=0, atol=1e-5)
