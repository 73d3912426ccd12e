"""Options of the rollout backend ``vllm``."""

from dataclasses import dataclass
from typing import Literal

from corerl import option
from corerl.engines.options import EngineOptions


@dataclass
class VllmOptions(EngineOptions):
    """Where vLLM runs and how."""

    enforce_eager: bool | None = option(None, "neither compile nor record CUDA graphs; null: true on cpu only")
    cpu_kv_cache_gb: int = option(1, "GiB of KV cache on the CPU", ge=1)
    sleep_level: Literal[1, 2] = option(
        2, "on cuda, what sleep does with the weights: 1 keeps them in main memory, 2 drops them"
    )
