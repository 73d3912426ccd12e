"""Options of the rollout backend ``sglang``."""

from dataclasses import dataclass

from corerl import option
from corerl.engines.options import EngineOptions


@dataclass
class SglangOptions(EngineOptions):
    """Where SGLang runs and how."""

    attention_backend: str | None = option(
        None, "SGLang's attention kernels; null: its own choice, and triton in float32, which others cannot compute"
    )
    disable_cuda_graph: bool = option(False, "record no CUDA graphs: starts sooner, generates slower")
