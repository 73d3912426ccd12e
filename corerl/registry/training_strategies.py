"""Training strategies: how a model is placed on devices, run and updated."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from corerl.config.schema import ModelConfig, OptimConfig

if TYPE_CHECKING:
    from torch import Tensor

    from corerl.batch.experience import Experience
    from corerl.objective import Objective
    from corerl.registry.policy_losses import Mean
    from corerl.telemetry.throughput import ModelShape


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
        seed: of random weights (``model.load_format: dummy``).
    """

    model: ModelConfig
    device: str
    micro_batching: MicroBatching
    optim: OptimConfig | None = None
    total_steps: int = 1
    grad_clip: float = 1.0
    temperature: float = 1.0
    seed: int = 0


class LogProbs(NamedTuple):
    """(B, T) float32 on the CPU, 0 where ``response_mask`` is 0. ``entropy`` is in nats."""

    log_probs: "Tensor"
    entropy: "Tensor | None" = None


class TrainingStrategy(Protocol):
    """One model on one rank."""

    data_parallel_rank: int
    data_parallel_size: int

    def log_probs(self, batch: "Experience", *, entropy: bool = False) -> LogProbs:
        """Log-probs of the response tokens (and the entropy at each), without gradients."""
        ...

    def update(self, mini_batch: "Experience", objective: "Objective") -> "dict[str, Mean]":
        """One optimizer step on this rank's share of a mini-batch, cut into micro-batches.

        The gradient is that of the whole mini-batch's loss, whatever the cut. Returns the objective's metrics and
        ``grad_norm`` (before clipping) and ``lr`` (of this step).

        Raises:
            NonFiniteError: the loss or the gradient norm is not finite; the weights are as before the call.
        """
        ...

    def shape(self) -> "ModelShape":
        """Size of the model and name of its device, for throughput figures."""
        ...

    def weights(self) -> "Iterator[tuple[str, Tensor]]":
        """Every weight under its Hugging Face name, as a full tensor; tied weights once."""
        ...

    def offload(self) -> None:
        """Move weights and optimizer state to the CPU."""
        ...

    def onload(self) -> None:
        """Undo :meth:`offload`."""
        ...

    def save(self, folder: Path) -> None:
        """Write weights, optimizer and schedule into an existing empty folder, for :meth:`load`."""
        ...

    def load(self, folder: Path) -> None:
        """Read what :meth:`save` wrote; training goes on bit for bit."""
        ...

    def export(self, folder: Path) -> None:
        """Write a Hugging Face model folder (weights, config, tokenizer) that ``model.path`` can name."""
        ...


class TrainingStrategyFactory(Protocol):
    """Builds the model of one rank and everything that trains it."""

    def __call__(self, spec: StrategySpec) -> TrainingStrategy: ...
