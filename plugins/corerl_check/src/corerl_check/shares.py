"""Memory of one GPU in bytes: estimates of options, and of a strategy without one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from corerl.contracts.config import ModelConfig, RolloutConfig, TrainConfig
from corerl_check.contract import Machine
from corerl_check.machine import GIB
from corerl_check.size import ModelSize

PROCESS = 0.6 * GIB
"""bytes of a process with CUDA: its context and the libraries"""


@dataclass(frozen=True)
class TrainingShare:
    """What one rank holds of one model.

    Attributes:
        weights: while it works, with copies in the dtype of compute.
        gradients, optimizer: 0 of a model that is not updated.
        at_rest: between its calls.
        optimizer_apart: the optimizer's state is on the device in its step alone, when activations are gone.
        tensor: ranks that divide the heads, the MLP and the vocabulary.
        sequence: ranks that divide the tokens of what tensor parallelism leaves whole.
        context: ranks that divide the tokens of a row.
        whole_keys: those of them that divide no heads: in attention each has the keys and values of all.
        recomputed: share of the layers that keep their input alone.
        offloads: activations of one layer at a time are on the device.
        logit_positions: positions whose logits exist at a time; None: all of a micro-batch.
        bytes_per_logit: of all their copies.
    """

    weights: float
    gradients: float
    optimizer: float
    at_rest: float
    optimizer_apart: bool = False
    tensor: int = 1
    sequence: int = 1
    context: int = 1
    whole_keys: int = 1
    recomputed: float = 0.0
    offloads: bool = False
    logit_positions: int | None = None
    bytes_per_logit: float = 12.0


@dataclass(frozen=True)
class CpuBound:
    """An engine's scheduler on the CPU, not the GPU, sets the pace of generation.

    Attributes:
        responses: of a step, from which on it does.
    """

    responses: int


@dataclass(frozen=True)
class GenerationShare:
    """What one GPU holds of an engine.

    Attributes:
        weights, other: of its copy of the model; activations, graphs and what else it needs.
        kv_cache: room for keys and values; None: not known. Each data parallel rank has a cache of its own requests.
        bytes_per_token: of the cache, on this GPU.
        asleep: what it keeps while the policy trains.
        cache_in_calls: the cache exists during generation alone.
        cpu_bound: None: not that anyone knows.
    """

    weights: float
    kv_cache: float | None
    bytes_per_token: float
    other: float = 0.0
    asleep: float = 0.0
    cache_in_calls: bool = False
    cpu_bound: CpuBound | None = None

    @property
    def total(self) -> float:
        return self.weights + (self.kv_cache or 0.0) + self.other


@dataclass(frozen=True)
class EngineRank:
    """What the fullest GPU of an engine has of a model.

    Attributes:
        layers: share of the layers.
        in_layers, beside: parameters.
    """

    layers: float
    in_layers: float
    beside: float

    @classmethod
    def of(cls, size: ModelSize, rollout: RolloutConfig) -> "EngineRank":
        """The fullest stage has as many layers as any, beside the embedding; the last one has the output layer.

        Tensor parallel ranks divide all of a stage; data parallel ranks divide its experts, and have all else.
        """
        stages, tensor = rollout.pipeline_model_parallel_size, rollout.tensor_model_parallel_size
        layers = -(-size.layers // stages) / size.layers
        outside_experts = size.parameters - size.beside - size.in_experts
        in_layers = layers * (outside_experts + size.in_experts / rollout.data_parallel_size)
        beside = size.beside - (size.output if stages > 1 else 0)
        return cls(layers, in_layers / tensor, beside / tensor)


@runtime_checkable
class SharesTraining(Protocol):
    """Options of a training strategy with an estimate of its memory."""

    def share(self, size: ModelSize, ranks: int, model: ModelConfig, *, updated: bool) -> TrainingShare:
        """What one of ``ranks`` holds; ``updated``: an optimizer belongs to it."""
        ...


@runtime_checkable
class SavesMemory(Protocol):
    """Options of a strategy or a rollout backend some of whose other values take less memory."""

    def leaner(self) -> Iterable[Mapping[str, Any]]:
        """Changes, each by itself: option -> value, or with ``name`` another part with its options."""
        ...


@runtime_checkable
class SharesGeneration(Protocol):
    """Options of a rollout backend with an estimate of its memory."""

    def generation(self, size: ModelSize, config: TrainConfig, machine: Machine) -> GenerationShare:
        """What one GPU of the machine holds."""
        ...


@runtime_checkable
class PlacesModels(Protocol):
    """Options of a runtime that may give single models their own numbers of ranks."""

    def ranks_of(self, role: str, ranks: int) -> int:
        """Ranks of a model, or engines (``rollout``); ``ranks``: GPUs of the actor, 0 without."""
        ...

    def is_apart(self, role: str) -> bool:
        """Whether a model has GPUs of its own."""
        ...


@runtime_checkable
class SpansNodes(Protocol):
    """Options of a rollout backend whose engine may have the GPUs of several machines, as many on each, and stages or
    data parallel ranks.
    """

    def check_nodes(self, nodes: int) -> None:
        """
        Raises:
            ConfigError: options that an engine over so many machines cannot have.
        """
        ...


def whole(size: ModelSize, model: ModelConfig, *, updated: bool) -> TrainingShare:
    """One undivided model: trained weights in float32 with a copy in the compute dtype, other weights in that dtype.

    AdamW keeps two float32 moments (Rajbhandari et al. 2020, "ZeRO", arXiv 1910.02054, section 3.1: 16 bytes a
    parameter with weights and gradients; the copy makes 18).
    """
    trained = size.trained if updated else 0
    stored = 4 * trained + size.bytes * (size.parameters - trained)
    copy = size.bytes * trained if size.bytes < 4 else 0
    return TrainingShare(
        weights=stored + copy,
        gradients=4 * trained,
        optimizer=8 * trained,
        at_rest=stored + 8 * trained,
        recomputed=float(model.enable_gradient_checkpointing),
    )


def longest(config: TrainConfig) -> int:
    """Tokens of the longest row."""
    return config.data.max_prompt_length + config.data.max_response_length
