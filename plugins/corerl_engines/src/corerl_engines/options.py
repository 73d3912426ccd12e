"""Options of every engine in a process of its own; a plugin's dataclass adds more."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from corerl.contracts.config import RolloutConfig, TrainConfig
from corerl.contracts.options import option
from corerl.errors import ConfigError
from corerl.secrets import reveal
from corerl_check import GIB, PROCESS, EngineRank, GenerationShare, Machine, ModelSize, longest
from corerl_engines.liveness import Patience

OVERHEAD = 2.0 * GIB
"""bytes of an engine beside weights and cache: activations of its largest batch, and CUDA graphs"""


@dataclass
class EngineOptions:
    """Options of an engine's process."""

    ours: ClassVar[tuple[str, ...]] = ()
    """arguments of the engine that the backend sets"""

    python: str | None = option(
        None, "interpreter of the environment that holds the engine (corerl engine install …); null: this one"
    )
    environment: dict[str, str] = option(help="variables for the engine's process, beside this one's", factory=dict)
    gpu_memory_utilization: float = option(0.5, "share of the device's memory that the engine may take", gt=0, le=1)
    max_model_len: int | None = option(
        None, "longest prompt and response together; null: the model's, if the cache holds it", ge=1
    )
    load_format: Literal["auto", "dummy"] = option(
        "auto", "dummy: start with random weights and generate once the trainer has sent its own; starts sooner"
    )
    quantization: Literal["none", "fp8"] = option(
        "none",
        "fp8: the layers' weights in e4m3 with a scale of each output channel, quantised at each update, and "
        "activations with a scale of each token; on cuda (docs/precision.md)",
    )
    engine_args: dict[str, Any] = option(help="further arguments of the engine itself", factory=dict)
    bucket_mb: int = option(256, "MiB of weights sent at a time", ge=1)
    untested_version: Literal["warn", "error"] = option("warn", "an engine outside of the tested range of versions")
    start_timeout: float = option(900.0, "seconds that the engine's start may take", gt=0)
    timeout: float = option(300.0, "seconds that a weight update's bucket, sleep, wake and health may take", gt=0)
    probe_interval: float = option(
        30.0, "seconds without output of a generating engine until it is probed for one token", gt=0
    )
    probe_timeout: float = option(
        45.0,
        "seconds after which an engine that neither answers nor works is killed and started again; for one whose "
        "processes work, timeout applies",
        gt=0,
    )
    log_folder: str | None = option(
        None, "keeps the newest 20 logs that an error named; null: ~/.local/state/corerl/engine-logs"
    )

    @property
    def patience(self) -> Patience:
        """For :class:`corerl_engines.process.EngineProcess`."""
        return Patience(self.probe_interval, self.probe_timeout, self.timeout)

    def check(self, key: str, config: TrainConfig) -> None:
        """
        Raises:
            ConfigError: ``max_model_len`` is less than the longest row of the run; kept sets have no limit; quantised
                weights on the CPU or in float32; ``engine_args`` sets what a key sets.
        """
        check_record(config.rollout)
        check_engine_args(self)
        if self.quantization != "none":
            from corerl_engines.quantization import check_quantization

            check_quantization(self, config.model, "cpu" if config.actor.device == "cpu" else "cuda")
        if self.max_model_len is not None and self.max_model_len < longest(config):
            raise ConfigError(
                "rollout.options.max_model_len",
                f"is {self.max_model_len}, and a row may have data.max_prompt_length + data.max_response_length = "
                f"{config.data.max_prompt_length} + {config.data.max_response_length} = {longest(config)} tokens",
            )

    def variables(self) -> dict[str, str]:
        """``environment``, with references to secrets replaced by the secrets.

        Raises:
            ConfigError: a referenced variable is not set.
        """
        return {name: reveal(value) for name, value in self.environment.items()}

    def leaner(self) -> Iterator[Mapping[str, Any]]:
        """For `corerl check`: see :class:`corerl_check.SavesMemory`."""
        yield {"gpu_memory_utilization": round(self.gpu_memory_utilization / 2, 2)}

    def generation(self, size: ModelSize, config: TrainConfig, machine: Machine) -> GenerationShare:
        """For `corerl check`: the cache gets the rest of ``gpu_memory_utilization`` beside the weights."""
        rollout = config.rollout
        in_layers = 1 if self.quantization == "fp8" else size.bytes
        rank = EngineRank.of(size, rollout)
        weights = rank.beside * size.bytes + rank.in_layers * in_layers
        memory, share = machine.memory, self.gpu_memory_utilization
        cache = None if memory is None else max(0.0, share * memory - weights - OVERHEAD)
        of_layer = max(1, min(rollout.tensor_model_parallel_size, size.key_value_heads))
        per_token = size.cache_bytes / of_layer * rank.layers
        return GenerationShare(weights, cache, per_token, OVERHEAD, asleep=PROCESS + GIB / 2)


def check_record(rollout: RolloutConfig) -> None:
    """
    Raises:
        ConfigError: kept sets without a limit: engines report a fixed number of tokens at each position.
    """
    is_truncated = rollout.top_p < 1 or rollout.min_p > 0
    if "kept_tokens" in rollout.record and is_truncated and rollout.top_k < 1:
        raise ConfigError(
            "rollout.record",
            f"'{rollout.name}' records kept_tokens only with a limit of their number: set rollout.top_k, such as 100, "
            "beside rollout.top_p or rollout.min_p; 'hf' needs no limit",
        )


def check_engine_args(options: EngineOptions) -> None:
    """
    Raises:
        ConfigError: ``engine_args`` sets an argument that the backend sets, or that has a key of its own, or has a flag
            of a command line.
    """
    places = {
        name: f"rollout.{key}"
        for key, names in {
            "tensor_model_parallel_size": ("tp_size", "tensor_parallel_size"),
            "pipeline_model_parallel_size": ("pp_size", "pipeline_parallel_size"),
            "data_parallel_size": ("dp_size", "enable_dp_attention", "data_parallel_size"),
        }.items()
        for name in names
    }
    places |= {each.name: f"rollout.options.{each.name}" for each in fields(options)}
    places |= {name: places.get(name, "the backend") for name in options.ours}
    for name in options.engine_args:
        plain = name.lstrip("-").replace("-", "_")
        if plain in places:
            reason = f"is set by {places[plain]} already: remove it here"
            raise ConfigError(f"rollout.options.engine_args.{name}", reason)
        if plain != name:
            raise ConfigError(f"rollout.options.engine_args.{name}", f"is a flag of a command line: write {plain}")
