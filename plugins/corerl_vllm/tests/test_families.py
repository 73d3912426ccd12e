"""Families of docs/models.md in vLLM: log-probs are the trainer's after an update."""

import os
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
import torch
from vllm_engine import DEVICE, PROMPT, generate

from corerl.contracts.config import ModelConfig
from corerl_testing.tiny_model import response_log_probs
from corerl_torch.families.columns import COLUMNS
from corerl_torch.families.table import FAMILIES, Family
from corerl_torch.loading import load_model
from corerl_torch.weights import as_in_files, saved_buffers
from corerl_vllm.backend import VllmBackend
from family_models import write_model

pytestmark = [
    pytest.mark.xdist_group("vllm"),
    pytest.mark.skipif(
        "CORERL_EVERY_FAMILY" not in os.environ, reason="starts an engine for each family: CORERL_EVERY_FAMILY=1"
    ),
]

EXPORT = next(column for column in COLUMNS if column.key == "vllm.export")
TOLERANCE = {"cpu": 1e-4, "cuda": 2e-2}[DEVICE]

SIZES = {
    "hidden_size": 128,
    "head_dim": 32,
    "global_head_dim": 64,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "query_pre_attn_scalar": 32,
    "moe_intermediate_size": 32,
    "intermediate_size": 64,
    "intermediate_size_mlp": 64,
    "shared_expert_intermediate_size": 32,
    "sliding_window": 16,
    "attention_chunk_size": 128,
}
"""those that vLLM's kernels take"""


@pytest.mark.parametrize(
    "family", [each for each in FAMILIES if each.state(EXPORT) == "proven"], ids=lambda each: each.model_type
)
def test_a_family_has_the_trainers_log_probs_after_an_update(
    family: Family, start: Callable[..., VllmBackend], engine_python: str, device: str, tmp_path: Path
) -> None:
    given = family.config_values()
    folder = write_model(tmp_path, family, **{name: size for name, size in SIZES.items() if name in given})
    model = ModelConfig(str(folder), dtype="fp32")
    policy = load_model(model, "lm", device="cpu", dtype=torch.float32)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(0.9)
    backend = start(vars(model), python=engine_python, bucket_mb=1)
    named = as_in_files(policy.config, ((name, each.detach()) for name, each in policy.named_parameters()))
    backend.update_weights(((name, each.to(device)) for name, each in chain(named, saved_buffers(policy))), 1)
    [completion] = generate(backend, max_tokens=24)
    tokens = list(completion.token_ids)
    true = response_log_probs(policy, PROMPT, tokens).gather(1, torch.tensor(tokens)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(completion.log_probs), true.float(), rtol=0, atol=TOLERANCE)
    backend.close()
