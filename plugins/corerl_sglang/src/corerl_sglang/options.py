"""Options of the rollout backend ``sglang``."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from corerl import option
from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError
from corerl_check import Finding, Machine, finding
from corerl_engines.options import EngineOptions

TESTED = ((0, 5, 17), (0, 5, 18))
"""tested versions: the first included, the second excluded"""

OURS = (
    "model_path",
    "dtype",
    "skip_tokenizer_init",
    "sampling_backend",
    "enable_memory_saver",
    "mem_fraction_static",
    "context_length",
    "nnodes",
    "node_rank",
    "dist_init_addr",
    "enable_return_routed_experts",
    "enable_lora",
    "max_lora_rank",
    "lora_target_modules",
    "max_loras_per_batch",
    "enable_weights_cpu_backup",
    "quantization",
)
"""engine arguments that users cannot set"""


@dataclass
class SglangOptions(EngineOptions):
    """Options of SGLang's process and engine."""

    ours: ClassVar[tuple[str, ...]] = OURS

    attention_backend: str | None = option(
        None, "SGLang's attention kernels; null: SGLang's choice, but triton for float32, which the others lack"
    )
    disable_cuda_graph: bool = option(False, "record no CUDA graphs: starts sooner, generates slower")

    def check_nodes(self, nodes: int) -> None:
        """For :class:`corerl_check.SpansNodes`: an engine over several machines takes all options."""

    def check(self, key: str, config: TrainConfig) -> None:
        """See :meth:`corerl_engines.options.EngineOptions.check`.

        Raises:
            ConfigError: an engine with stages or data parallel ranks has what these do not work with.
        """
        super().check(key, config)
        rollout = config.rollout
        adapters = config.model.lora_rank > 0 and rollout.lora != "merged"
        for name, wrong, right in (
            ("trainer.max_staleness", config.trainer.max_staleness > 0, "0, or use vllm"),
            ("trainer.batch_order", config.trainer.batch_order == "first_finished", "fifo, or use vllm"),
            ("model.lora_rank", adapters, "0, or rollout.lora=merged"),
            ("rollout.record", "experts" in rollout.record, "it without experts, or use vllm"),
        ):
            if rollout.pipeline_model_parallel_size > 1 and wrong:
                raise ConfigError(name, f"needs rollout.pipeline_model_parallel_size=1 with sglang: set {right}")
        if rollout.data_parallel_size > 1 and adapters:
            raise ConfigError(
                "model.lora_rank", "needs rollout.data_parallel_size=1 with sglang: set rollout.lora=merged"
            )

    def examine(self, key: str, config: TrainConfig, machine: Machine) -> Iterator[Finding]:
        """For `corerl check`, and before a run: whether SGLang is installed."""
        from corerl_engines.installed import examine_engine

        if not machine.gpus or config.actor.device == "cpu":
            remedy = "Set actor.device=cuda on a machine with one, or use hf or vllm."
            yield finding("error", "rollout.name", "sglang needs a CUDA device", remedy)
        if not machine.planned:
            yield from examine_engine("SGLang", ("sglang",), TESTED, self)
