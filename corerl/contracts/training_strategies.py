"""Training strategies: how a model is placed on devices, run and updated."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from corerl.contracts.config import ModelConfig, OptimConfig
    from corerl.contracts.experience import Experience
    from corerl.contracts.losses import Mean
    from corerl.contracts.objective import Objective
    from corerl.contracts.throughput import ModelShape
    from corerl.contracts.token_outputs import TokenOutputs, Wanted

ARCHITECTURE = (
    *("model_type", "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "num_experts", "vocab_size", "tie_word_embeddings"),
)
"""keys of a Hugging Face config that say whether weights of one model are weights of another"""


TOKENS = {"cpu": 512, "cuda": 16384}
"""tokens of a micro-batch by default"""


@dataclass(frozen=True)
class MicroBatching:
    """Limit of a micro-batch: tokens or sequences. A row longer than ``max_tokens`` is one by itself."""

    max_tokens: int | None = None
    max_sequences: int | None = None

    @classmethod
    def by_tokens(cls, tokens: int | None, device: str) -> "MicroBatching":
        """At most so many tokens; None: as many as a device, ``cpu`` or ``cuda``, needs to work at its full rate."""
        return cls(max_tokens=tokens or TOKENS[device])


@dataclass(frozen=True)
class StrategySpec:
    """The model that a strategy builds.

    Attributes:
        model: source and precision.
        device: ``cpu`` or ``cuda``.
        optim: the optimizer, or None for a model without updates (the reference).
        total_steps: optimizer steps of the whole run, for the learning-rate schedule.
        temperature: log-probs are those of softmax(logits / temperature), the distribution of the samples.
        micro_batching: of forward-only passes and mini-batches.
        grad_clip: largest gradient norm.
        seed: of random weights (``model.load_format: dummy``, and the value head).
        head: ``lm`` for a language model; ``value`` for a critic: the same body with one number for each token;
            ``score`` for a reward model: the same without a bias, as transformers' sequence classification has it.
    """

    model: "ModelConfig"
    device: str
    micro_batching: MicroBatching
    optim: "OptimConfig | None" = None
    total_steps: int = 1
    grad_clip: float = 1.0
    temperature: float = 1.0
    seed: int = 0
    head: Literal["lm", "value", "score"] = "lm"


class TrainingStrategy(Protocol):
    """One model on one rank."""

    data_parallel_rank: int
    data_parallel_size: int

    def forward(self, batch: "Experience", wanted: "Collection[Wanted]") -> "TokenOutputs":
        """The wanted outputs without gradients: float32, on the CPU."""
        ...

    def update(self, mini_batch: "Experience", objective: "Objective") -> "dict[str, Mean]":
        """One optimizer step on this rank's share of a mini-batch, cut into micro-batches.

        The gradient is that of the whole mini-batch's loss for every cut; rows of one unit (``unit_ids``) are in one
        micro-batch. Returns the objective's metrics,
        ``grad_norm`` (before clipping; absent if a gradient in float16 overflowed) and ``lr`` (of this step).

        Raises:
            NonFiniteError: the loss or the gradient norm is not finite. Weights and optimizer are unchanged; ``rows``
                are the samples with such a loss or gradient of their own.
        """
        ...

    def shape(self) -> "ModelShape":
        """Size of the model and name of its device, for throughput figures."""
        ...

    def weights(self, dtype: "torch.dtype | None" = None) -> "Iterator[tuple[str, Tensor]]":
        """Every weight by its name in model files, as a full tensor; tied weights once.

        Args:
            dtype: of the floating-point tensors, each rounded once, from the model's own (adapters merged in float32),
                before ranks gather it; None: the model's.
        """
        ...

    def offload(self) -> None:
        """Move weights and optimizer state to the CPU."""
        ...

    def onload(self) -> None:
        """Undo :meth:`offload`."""
        ...

    def save(self, folder: Path) -> Callable[[], None] | None:
        """Write weights, optimizer and schedule into an existing folder, for :meth:`load`.

        A strategy may copy them to its own memory and return a function that writes the copy: it is called once, in
        another thread of each rank, during training, and uses neither the model nor the groups of other collectives.
        """
        ...

    def load(self, folder: Path) -> None:
        """Read the files of :meth:`save`; training continues bit for bit."""
        ...

    def export(self, folder: Path) -> None:
        """Write a Hugging Face model folder (weights, config, tokenizer) for ``model.path``."""
        ...


@runtime_checkable
class MeasuredStrategy(Protocol):
    """A strategy with metrics of its own."""

    def measured(self) -> "Mapping[str, float]":
        """Metrics of a step, after its weights are sent; those of rank 0 are recorded."""
        ...


@runtime_checkable
class AveragingStrategy(Protocol):
    """A strategy that keeps an average of the weights of past updates."""

    def averaged(self) -> AbstractContextManager[None]:
        """Within, ``forward`` computes with the averaged weights.

        Raises:
            ConfigError: the strategy's options ask for no average.
        """
        ...


class CheckpointReader(Protocol):
    """Reads the policy from a folder of :meth:`TrainingStrategy.save`, for ``corerl export``.

    It runs in one process without process group and device, and holds a part of the model at a time.
    """

    def __call__(self, folder: Path, model: "ModelConfig") -> "Iterator[tuple[str, Tensor]]":
        """Every weight by its name in model files or transformers, adapters merged; tied weights once."""
        ...


class TrainingStrategyFactory(Protocol):
    """Builds the model of one rank with its training."""

    def __call__(self, spec: StrategySpec) -> TrainingStrategy: ...
