"""Training strategies: how a model is placed on devices, run and updated."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from corerl.contracts.kinds import fact

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from corerl.contracts.config import ModelConfig, OptimConfig
    from corerl.contracts.experience import Experience
    from corerl.contracts.losses import Mean
    from corerl.contracts.objective import Objective
    from corerl.contracts.throughput import ModelShape
    from corerl.contracts.token_outputs import Output, TokenOutputs

ARCHITECTURE = (
    *("model_type", "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "num_experts", "vocab_size", "tie_word_embeddings"),
)
"""keys of a Hugging Face config that say whether weights of one model are weights of another"""


@dataclass(frozen=True)
class MicroBatching:
    """How a batch is cut: at most so many tokens, or at most so many sequences, whichever is given.

    A row longer than ``max_tokens`` stands alone.
    """

    max_tokens: int | None = None
    max_sequences: int | None = None


@dataclass(frozen=True)
class StrategySpec:
    """What a strategy is asked to build.

    Attributes:
        model: what to load and in which precision.
        device: ``cpu`` or ``cuda``.
        optim: the optimizer, or None for a model that is never updated (the reference).
        total_steps: optimizer steps in the whole run, for the learning-rate schedule.
        temperature: log-probs are those of softmax(logits / temperature), the distribution that was sampled from.
        micro_batching: how forward-only passes and mini-batches are cut into micro-batches.
        grad_clip: largest gradient norm.
        seed: of random weights (``model.load_format: dummy``, and the value head).
        head: ``lm`` for a language model; ``value`` for a critic: the same body with one number for each token.
    """

    model: "ModelConfig"
    device: str
    micro_batching: MicroBatching
    optim: "OptimConfig | None" = None
    total_steps: int = 1
    grad_clip: float = 1.0
    temperature: float = 1.0
    seed: int = 0
    head: Literal["lm", "value"] = "lm"


class TrainingStrategy(Protocol):
    """One model on one rank."""

    data_parallel_rank: int
    data_parallel_size: int

    def forward(self, batch: "Experience", wanted: "Collection[Output]") -> "TokenOutputs":
        """What is wanted, without gradients: float32, on the CPU."""
        ...

    def update(self, mini_batch: "Experience", objective: "Objective") -> "dict[str, Mean]":
        """One optimizer step on this rank's share of a mini-batch, cut into micro-batches.

        The gradient is that of the whole mini-batch's loss, whatever the cut. Returns the objective's metrics and
        ``grad_norm`` (before clipping) and ``lr`` (of this step).

        Raises:
            NonFiniteError: the loss or the gradient norm is not finite. Weights and optimizer are as before the call,
                and ``rows`` are the samples of the mini-batch whose own loss or gradient is not finite.
        """
        ...

    def shape(self) -> "ModelShape":
        """Size of the model and name of its device, for throughput figures."""
        ...

    def weights(self, dtype: "torch.dtype | None" = None) -> "Iterator[tuple[str, Tensor]]":
        """Every weight under the name that it has in model files, as a full tensor; tied weights once.

        Args:
            dtype: of the floating-point tensors, each rounded once from what the model holds (adapters merged into
                it in float32) and before ranks gather it; None: as the model holds them.
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

        A strategy that can copies them to memory of its own instead, and returns what writes the copy: called once, in
        another thread of each rank, while training goes on. It touches neither the model nor other collectives' groups.
        """
        ...

    def load(self, folder: Path) -> None:
        """Read what :meth:`save` wrote; training goes on bit for bit."""
        ...

    def export(self, folder: Path) -> None:
        """Write a Hugging Face model folder (weights, config, tokenizer) that ``model.path`` can name."""
        ...


@runtime_checkable
class MeasuredStrategy(Protocol):
    """A strategy with metrics of its own."""

    def measured(self) -> "Mapping[str, float]":
        """Metrics of a step, after its weights are sent; those of rank 0 are recorded."""
        ...


class CheckpointReader(Protocol):
    """Reads the policy out of a folder that :meth:`TrainingStrategy.save` wrote, for ``corerl export``.

    It runs in one process without a process group or a device, and holds a part of the model at a time.
    """

    def __call__(self, folder: Path, model: "ModelConfig") -> "Iterator[tuple[str, Tensor]]":
        """Every weight under its name in model files or in transformers, adapters merged; tied weights once."""
        ...


@dataclass(frozen=True)
class StrategyFacts:
    """Facts of a training strategy."""

    distributed: bool = fact(False, "allows several workers, with `RANK` and `WORLD_SIZE` in their environment")
    read_checkpoint: CheckpointReader | str | None = fact(
        None, "no effect on the run; `corerl export` reads checkpoints with this function", contract=CheckpointReader
    )


class TrainingStrategyFactory(Protocol):
    """Builds the model of one rank and everything that trains it."""

    def __call__(self, spec: StrategySpec) -> TrainingStrategy: ...
