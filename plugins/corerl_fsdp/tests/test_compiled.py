"""``compile: true`` changes no number. The graphs are traced as ever, and run as they are: a compiler takes minutes."""

import functools
import os

import pytest
import rank_jobs
import torch

from corerl_torch import token_statistics
from families import write_config


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    token_statistics._compile.cache_clear()
    torch._dynamo.reset()
    yield
    token_statistics._compile.cache_clear()
    torch._dynamo.reset()


@pytest.mark.skipif("CORERL_EVERY_COMBINATION" not in os.environ, reason="compiles: CORERL_EVERY_COMBINATION=1")
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


@pytest.mark.skipif("CORERL_EVERY_COMBINATION" not in os.environ, reason="compiles again: CORERL_EVERY_COMBINATION=1")
def test_compiled_layers_share_prefixes(tmp_path):
    write_config(tmp_path, "qwen2", num_hidden_layers=1)
    job = {"kind": "agree", "model": str(tmp_path), "trees": 0}
    plain, compiled = rank_jobs.run(job), rank_jobs.run({**job, "fsdp": {"compile": True, "share_prefixes": True}})
    for name, true in plain["gradient"].items():
        assert (compiled["gradient"][name] - true).norm() <= 1e-5 * true.norm() + 1e-8, name


@pytest.mark.skipif("CORERL_EVERY_COMBINATION" not in os.environ, reason="compiles again: CORERL_EVERY_COMBINATION=1")
def test_compiled_layers_in_fp8_train_alike(tmp_path):
    write_config(tmp_path, "qwen2", num_hidden_layers=1, hidden_size=32, intermediate_size=64)
    config = {"enable_gradient_checkpointing": True}
    job = {"kind": "agree", "model": str(tmp_path), "config": config, "fsdp": {"fp8": True}}
    plain = rank_jobs.run(job)["gradient"]
    compiled = rank_jobs.run({**job, "fsdp": {"compile": True, "fp8": True}})["gradient"]
    for name, true in plain.items():
        assert (compiled[name] - true).norm() <= 1e-4 * true.norm() + 1e-8, name


def test_statistics_are_compiled_once_for_any_number_of_rows_trained_or_not():
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    generator = torch.Generator().manual_seed(0)
    for rows, trained in ((7, False), (5, False), (6, True), (9, True)):
        logits = torch.randn(rows, 11, generator=generator)
        targets = torch.randint(11, (rows,), generator=generator)
        results = []
        for compiled in (True, False):
            own = logits.clone().requires_grad_(trained)
            result = token_statistics.token_statistics(
                own, targets, 0.7, entropy=True, sum_pi_squared=False, compiled=compiled
            )
            if trained:
                (result.log_probs.square() + result.entropy.square()).sum().backward()
            results.append((result, own.grad))
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    assert graphs["unique_graphs"] - before == 2  # values and gradient
