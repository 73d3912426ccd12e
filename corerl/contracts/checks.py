"""Checks before the start: findings, sizes and memory, and the optional methods of parts that supply them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.errors import CoreRLError

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        severity: ``error``: the run would end with it; ``warning``: it may, or is slower or worse than it need be;
            ``note``: to know.
        key: of the config, '' where it belongs to none.
        sentence: what is so.
        remedy: what would be right, or where that is told; '' of a note.
        problem: its name in docs/troubleshooting.md, or ''.
    """

    severity: Severity
    key: str
    sentence: str
    remedy: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Machine:
    """One of the run's machines.

    Attributes:
        gpus: how many it has.
        memory: bytes of each, None: not known.
        name: of the GPU, '' where there is none or it is planned.
        planned: told by the user; what is installed or attached here says nothing about it.
    """

    gpus: int
    memory: float | None = None
    name: str = ""
    planned: bool = False


@dataclass(frozen=True)
class ModelSize:
    """What the memory of a model depends on.

    Attributes:
        parameters: all of them, tied ones once.
        trained: those that an optimizer would change: all, or adapters and a value head with ``model.lora_rank``.
        layer, beside: parameters of one decoder layer, and of what stands beside the layers (embedding, output layer).
        intermediate: width of the MLP; of a mixture of experts, of the experts that see one token together.
        vocabulary: 1 of a critic.
        bytes: of a number in the dtype of compute.
        stores_scores: attention keeps its matrix of scores (``eager``).
    """

    parameters: int
    trained: int
    layer: int
    beside: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_value_heads: int
    head_size: int
    vocabulary: int
    bytes: int
    positions: int
    stores_scores: bool = False

    @property
    def cache_bytes(self) -> int:
        """Of one token's keys and values in all layers."""
        return 2 * self.layers * self.key_value_heads * self.head_size * self.bytes


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
        checkpointing: layers keep their input alone.
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
    checkpointing: bool = False
    logit_positions: int | None = None
    bytes_per_logit: float = 12.0


@dataclass(frozen=True)
class CpuBound:
    """When an engine's scheduler on the CPU, not the GPU, sets the pace of generation.

    Attributes:
        responses: of a step, from which on it does.
        key, sentence: of the note that tells so.
    """

    responses: int
    key: str
    sentence: str


@dataclass(frozen=True)
class GenerationShare:
    """What one GPU holds of an engine.

    Attributes:
        weights, other: of its copy of the model; activations, graphs and what else it needs.
        kv_cache: room for keys and values; None: not known.
        bytes_per_token: of the cache, on this GPU.
        asleep: what it keeps while the policy trains.
        cpu_bound: None: not that anyone knows.
    """

    weights: float
    kv_cache: float | None
    bytes_per_token: float
    other: float = 0.0
    asleep: float = 0.0
    cpu_bound: CpuBound | None = None

    @property
    def total(self) -> float:
        return self.weights + (self.kv_cache or 0.0) + self.other


@runtime_checkable
class Examined(Protocol):
    """Options of a part, or what is registered, that can be examined without being started."""

    def examine(self, key: str, config: TrainConfig, machine: Machine) -> Iterable[Finding | CoreRLError]:
        """Findings about this part on this machine: a missing engine, too few GPUs; an error is one, too.

        Args:
            key: of the config, which selects the part.
        """
        ...


@runtime_checkable
class CheckedOptions(Protocol):
    """Options with rules between them and the rest of the config."""

    def check(self, key: str, config: TrainConfig) -> None:
        """
        Raises:
            RequestError: a rule does not hold. It is checked before anything is loaded.
        """
        ...


@runtime_checkable
class SharesTraining(Protocol):
    """Options of a training strategy with an estimate of its memory."""

    def share(self, size: ModelSize, ranks: int, model: ModelConfig, *, updated: bool) -> TrainingShare:
        """What one of ``ranks`` holds; ``updated``: an optimizer belongs to it."""
        ...


@runtime_checkable
class SharesGeneration(Protocol):
    """Options of a rollout backend with an estimate of its memory."""

    def generation(self, size: ModelSize, config: TrainConfig, memory: float | None) -> GenerationShare:
        """What one GPU holds; ``memory``: bytes that it has, None: not known."""
        ...
