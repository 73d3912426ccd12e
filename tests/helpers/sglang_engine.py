"""The engine ``sglang`` with random models, for its tests and ``benchmarks/gpu/sglang_claims.py``."""

import asyncio
import copy
import functools
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl_sglang.backend import SglangBackend
from corerl_sglang.options import SglangOptions
from corerl_testing.tiny_model import response_log_probs, write_byte_tokenizer
from corerl_torch.families.probe import randomize
from corerl_torch.families.table import Family
from corerl_torch.loading import load_model
from corerl_torch.routers import Routers
from corerl_torch.weights import as_in_files, saved_buffers
from family_models import write_model

DEVICE = os.environ.get("CORERL_TEST_DEVICE", "cuda")
"""``cpu`` is for stand-ins of SGLang's kernels"""

PROMPT = [72, 101, 108, 108, 111]

SHAPE: dict[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 258,
    "pad_token_id": 256,
}

DENSE = Qwen3Config(**{**SHAPE, "head_dim": 32})  # float32 has no kernel that norms and rotates heads of 64

MOE = Qwen3MoeConfig(**SHAPE, num_experts=16, num_experts_per_tok=4, moe_intermediate_size=128, norm_topk_prob=True)


def write(folder: Path, config: Any) -> Path:
    """A folder with a random model of the config; equal in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        auto: Any = AutoModelForCausalLM
        model = auto.from_config(config, dtype=torch.float32)
        randomize(model)
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "intermediate_size_mlp": 256,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "head_dim": 64,
    "global_head_dim": 128,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "query_pre_attn_scalar": 64,
    "hidden_size_per_layer_input": 64,
    "sliding_window": 16,
    "attention_chunk_size": 128,
    "max_position_embeddings": 4096,
}

OF_FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_next": {"full_attention_interval": 2},
    "mistral": {"sliding_window": None},  # which SGLang ignores
    "phi3": {"sliding_window": None},
    "gemma3_text": {"tie_word_embeddings": True},
    "gpt_oss": {"max_position_embeddings": 131072},
    "deepseek_v3": {
        "head_dim": 64,
        "q_lora_rank": 128,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    },
}


class Policy:
    """The trainer's model: float32 numbers on the CPU, rounded as the engine's.

    Args:
        dtype: of the engine.
    """

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self.model = load_model(ModelConfig(str(folder)), "lm", device="cpu", dtype=torch.float32)
        self.dtype = dtype
        self.rounding = copy.deepcopy(self.model).to(dtype)
        """computes in the engine's dtype"""
        self._first = {name: each.detach().clone() for name, each in self.model.named_parameters()}
        self.scale(1.0)

    @torch.no_grad()
    def scale(self, factor: float) -> "Policy":
        """Multiply the first matrices."""
        for name, each in self.model.named_parameters():
            each.copy_((self._first[name] * (factor if each.dim() > 1 else 1)).to(self.dtype))
        for each, own in zip(self.rounding.parameters(), self.model.parameters(), strict=True):
            each.copy_(own)
        return self

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """For ``update_weights``."""
        named = ((name, each.detach().to(self.dtype)) for name, each in self.model.named_parameters())
        every = chain(as_in_files(self.model.config, named), saved_buffers(self.model))
        return ((name, each.to(DEVICE)) for name, each in every)

    @functools.cached_property
    def routers(self) -> Routers:
        return Routers(self.model)

    @torch.no_grad()
    def log_probs(self, prompt: list[int], tokens: list[int], temperature: float = 1.0) -> torch.Tensor:
        """(tokens, vocabulary) float64."""
        return response_log_probs(self.model, prompt, tokens, temperature).double()

    @torch.no_grad()
    def errors(self, prompt: list[int], completion: Completion, start: int = 0, end: int | None = None) -> torch.Tensor:
        """(2, tokens) distances from the log-probs of a response without limits: the engine's, and those of this model
        in the engine's dtype.
        """
        tokens = list(completion.token_ids)
        places = torch.tensor(tokens)[:, None]
        true = self.log_probs(prompt, tokens).gather(1, places)[:, 0]
        rounded = response_log_probs(self.rounding, prompt, tokens).double().gather(1, places)[:, 0]
        given = torch.tensor(list(completion.log_probs), dtype=torch.float64)
        return torch.stack([given - true, rounded - true]).abs()[:, start:end]


def begin(
    folder: Path,
    python: str | None,
    dtype: Literal["fp32", "bf16"] = "bf16",
    rollout: RolloutConfig | None = None,
    **options: Any,
) -> SglangBackend:
    """A backend whose engine starts; several engines fit on one GPU."""
    options = {
        "python": python,
        "gpu_memory_utilization": 0.6,  # of which the cache takes a little
        "start_timeout": 300.0,
        "timeout": 120.0,
        "bucket_mb": 1,
        "disable_cuda_graph": True,
        **options,
        "engine_args": {"max_total_tokens": 30_000, "max_running_requests": 32, **options.get("engine_args", {})},
    }
    model = ModelConfig(str(folder), dtype=dtype)
    return SglangBackend(model, rollout or RolloutConfig(), device="cuda", options=SglangOptions(**options))


def begin_dense(folder: Path, python: str | None) -> SglangBackend:
    """In float32, where rounding hides nothing; kept sets and likely tokens are recorded."""
    rollout = RolloutConfig(record=["kept_tokens", "top_log_probs"], top_k=20, top_log_probs=6)
    return begin(write(folder, DENSE), python, "fp32", rollout)


def begin_moe(folder: Path, python: str | None) -> SglangBackend:
    """In bf16 with SGLang's own kernels and CUDA graphs; experts are recorded."""
    options = {"disable_cuda_graph": False, "engine_args": {"cuda_graph_max_bs_decode": 8}}
    return begin(write(folder, MOE), python, "bf16", RolloutConfig(record=["experts"]), **options)


def begin_family(folder: Path, python: str | None, family: Family) -> SglangBackend:
    """Of docs/models.md, with sizes that SGLang's kernels take."""
    sizes = {name: size for name, size in SIZES.items() if name in family.config_values()}
    return begin(write_model(folder, family, **{**sizes, **OF_FAMILIES.get(family.model_type, {})}), python)


def request(name: str = "r", prompt: list[int] | None = None, **sampling: Any) -> GenerationRequest:
    return GenerationRequest(
        name, prompt or PROMPT, SamplingParams(**{"max_tokens": 24, "ignore_eos": True, **sampling})
    )


def generate(backend: SglangBackend, *requests: GenerationRequest) -> list[list[Completion]]:
    return asyncio.run(asyncio.wait_for(backend.generate(list(requests)), 120))
