"""Tiny models of several architectures, and backends that run them."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MixtralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl_hf.backend import HfBackend
from corerl_hf.options import HfOptions

VOCABULARY = 96

CONFIGS: dict[str, Any] = {
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "llama": LlamaConfig,
    "gemma3": Gemma3TextConfig,  # every other layer sees 8 tokens only
    "qwen3_moe": Qwen3MoeConfig,
    "mixtral": MixtralConfig,
}
EXTRA: dict[str, dict[str, Any]] = {
    "qwen2": {"tie_word_embeddings": True},
    "gemma3": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16, "mlp_only_layers": [0]},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Model folders whose wide random weights make some tokens much more likely than others."""
    folders = {}
    for name, config in CONFIGS.items():
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(
            config(
                vocab_size=VOCABULARY,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=8,
                initializer_range=0.2,
                bos_token_id=None,
                eos_token_id=None,
                pad_token_id=0,
                **EXTRA.get(name, {}),
            )
        )
        folders[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(folders[name])
    return folders


@pytest.fixture(scope="session")
def reference(model_dirs: dict[str, Path]) -> Callable[[str], Any]:
    """The model of an architecture as transformers loads it."""
    return lambda name: AutoModelForCausalLM.from_pretrained(model_dirs[name]).eval()


@pytest.fixture
def make_backend(model_dirs: dict[str, Path]) -> Iterator[Callable[..., HfBackend]]:
    """Backends by architecture and options; closed at the end."""
    made: list[HfBackend] = []

    def make(name: str = "qwen2", device: str = "cpu", record: Sequence[str] = (), **options: Any) -> HfBackend:
        model, rollout = ModelConfig(path=str(model_dirs[name])), RolloutConfig(record=list(record))
        made.append(HfBackend(model, rollout, device=device, options=HfOptions(**options)))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


@pytest.fixture
def backend(make_backend: Callable[..., HfBackend]) -> HfBackend:
    return make_backend()
