"""Experts, of which vLLM makes something else than what it is given: they are right after every update."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from vllm_engine import DEVICE, PROMPT, generate, one_more_engine

from corerl.contracts.config import ModelConfig
from corerl_testing.tiny_model import response_log_probs
from corerl_torch.loading import load_model
from corerl_torch.weights.names import as_in_files
from corerl_vllm.backend import VllmBackend
from families import write_config

pytestmark = pytest.mark.xdist_group("vllm")

SIZES = {"vocab_size": 259, "hidden_size": 64, "head_dim": 32, "moe_intermediate_size": 32, "initializer_range": 0.2}

TOLERANCE = {"cpu": 1e-4, "cuda": 2e-2}[DEVICE]


@one_more_engine
def test_experts_are_the_trainers_after_each_update(
    start: Callable[..., VllmBackend], engine_python: str, device: str, tmp_path: Path
):
    model = ModelConfig(str(write_config(tmp_path, "qwen3_moe", **SIZES)), load_format="dummy", dtype="fp32")
    backend = start(vars(model), python=engine_python, bucket_mb=1)
    for version in (1, 2):
        policy = load_model(model, "lm", device="cpu", dtype=torch.float32, seed=version)
        named = ((name, each.detach().to(device)) for name, each in policy.named_parameters())
        backend.update_weights(as_in_files(policy.config, named), version, verify=True)
        [completion] = generate(backend)
        tokens = torch.tensor(completion.token_ids)
        true = response_log_probs(policy, PROMPT, tokens.tolist()).gather(1, tokens[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(completion.log_probs), true.float(), rtol=0, atol=TOLERANCE)
    backend.close()
