"""Options of the rollout backend ``vllm``."""

from dataclasses import dataclass
from typing import Any, Literal

from corerl import option


@dataclass
class VllmOptions:
    """Where the engine runs and how."""

    python: str | None = option(
        None, "interpreter of the environment that holds vLLM (corerl engine install vllm); null: this one"
    )
    environment: dict[str, str] = option(help="variables for the engine's process, beside this one's", factory=dict)
    tensor_parallel_size: int = option(1, "GPUs that hold one copy of the model", ge=1)
    gpu_memory_utilization: float = option(0.5, "share of the device's memory that the engine may take", gt=0, le=1)
    max_model_len: int | None = option(None, "longest prompt and response together; null: the model's own", ge=1)
    enforce_eager: bool | None = option(None, "neither compile nor record CUDA graphs; null: true on cpu only")
    load_format: Literal["auto", "dummy"] = option(
        "auto", "dummy: start with random weights and generate once the trainer has sent its own; starts sooner"
    )
    engine_args: dict[str, Any] = option(help="further arguments of vLLM's AsyncEngineArgs", factory=dict)
    cpu_kv_cache_gb: int = option(1, "GiB of KV cache on the CPU", ge=1)
    sleep_level: Literal[1, 2] = option(
        2, "on cuda, what sleep does with the weights: 1 keeps them in main memory, 2 drops them"
    )
    bucket_mb: int = option(256, "MiB of weights that are handed over at a time; there are two buckets", ge=1)
    untested_version: Literal["warn", "error"] = option("warn", "a vLLM outside of the tested range")
    start_timeout: float = option(900.0, "seconds that the engine's start may take", gt=0)
    timeout: float = option(300.0, "seconds that a weight update's bucket, sleep, wake and health may take", gt=0)
