"""Options of the rollout backend ``sglang``."""

from collections.abc import Iterator
from dataclasses import dataclass

from corerl import option
from corerl.contracts.config import TrainConfig
from corerl_check import Finding, Machine, finding
from corerl_engines.options import EngineOptions

TESTED = ((0, 5, 17), (0, 5, 18))
"""versions, from the first up to, but without, the second"""


@dataclass
class SglangOptions(EngineOptions):
    """Where SGLang runs and how."""

    attention_backend: str | None = option(
        None, "SGLang's attention kernels; null: its own choice, and triton in float32, which others cannot compute"
    )
    disable_cuda_graph: bool = option(False, "record no CUDA graphs: starts sooner, generates slower")

    def examine(self, key: str, config: TrainConfig, machine: Machine) -> Iterator[Finding]:
        """For `corerl check`, and before a run: whether SGLang is there."""
        from corerl_engines.installed import examine_engine

        if not machine.gpus or config.actor.device == "cpu":
            remedy = "Set actor.device=cuda on a machine with one, or take hf or vllm."
            yield finding("error", "rollout.name", "sglang needs a CUDA device", remedy)
        if not machine.planned:
            yield from examine_engine("SGLang", ("sglang",), TESTED, self)
