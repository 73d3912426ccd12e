"""The default training strategy, for faults that change its inputs or outputs."""

import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.config import ActorConfig, ModelConfig
from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean
from corerl.contracts.objective import Objective, ObjectiveOutput
from corerl.contracts.throughput import ModelShape
from corerl.contracts.token_outputs import TokenOutputs, Wanted
from corerl.contracts.training_strategies import StrategySpec, TrainingStrategyFactory
from corerl.plugins import load_plugins
from corerl.registry import Selected
from planted.fault import Fault

DEFAULT = str(ActorConfig().strategy)


def _default() -> Selected[TrainingStrategyFactory]:
    return load_plugins().registries.training_strategies.select(DEFAULT)


class Strategy:
    """The default strategy as it is."""

    def __init__(self, spec: StrategySpec) -> None:
        self.spec = self.asked(spec)
        self.inner: Any = _default().load()(self.spec)
        self.data_parallel_rank: int = self.inner.data_parallel_rank
        self.data_parallel_size: int = self.inner.data_parallel_size

    def asked(self, spec: StrategySpec) -> StrategySpec:
        """The spec for the default strategy."""
        return spec

    def forward(self, batch: Experience, wanted: Collection[Wanted]) -> TokenOutputs:
        outputs: TokenOutputs = self.inner.forward(batch, wanted)
        given: dict[str, Any] = {name: tensor for name, tensor in outputs._asdict().items() if tensor is not None}
        changed: dict[str, Any] = {name: self.change(name, tensor, batch) for name, tensor in given.items()}
        return TokenOutputs(**changed)

    def update(self, mini_batch: Experience, objective: Objective) -> dict[str, Mean]:
        metrics: dict[str, Mean] = self.inner.update(mini_batch, objective)
        return metrics

    def shape(self) -> ModelShape:
        shape: ModelShape = self.inner.shape()
        return shape

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        yield from self.inner.weights(dtype)

    def offload(self) -> None:
        self.inner.offload()

    def onload(self) -> None:
        self.inner.onload()

    def save(self, folder: Path) -> Callable[[], None] | None:
        write: Callable[[], None] | None = self.inner.save(folder)
        return write

    def load(self, folder: Path) -> None:
        self.inner.load(folder)

    def export(self, folder: Path) -> None:
        self.inner.export(folder)

    def change(self, name: str, tensor: Tensor, batch: Experience) -> Tensor:
        """The output of ``forward`` with this name."""
        return tensor


class Seen:
    """An objective that gets other outputs or another batch, or whose loss is scaled, for each micro-batch."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    @property
    def wanted(self) -> frozenset[Wanted]:
        return self.objective.wanted

    def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
        output = self.objective(self.outputs(outputs), self.batch(batch))
        return replace(output, loss=output.loss * self.scale(batch))

    def outputs(self, outputs: TokenOutputs) -> TokenOutputs:
        return outputs

    def batch(self, batch: Experience) -> Experience:
        return batch

    def scale(self, batch: Experience) -> float:
        return 1.0


def read_checkpoint(folder: Path, model: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """As the default strategy's checkpoints are read."""
    read = _default().entry.load_fact("read_checkpoint")
    assert read is not None
    yield from read(folder, model)


FACTS = {"read_checkpoint": read_checkpoint, "replays": ("kept_tokens",)}


def planted(wrong: Callable[..., Any], check: str, reason: str, *, patience: float = 1.0) -> Fault:
    """A fault of the default strategy, named and described by its class."""
    name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in wrong.__name__).lstrip("_")
    flaw = (inspect.getdoc(wrong) or "").splitlines()[0]
    right = f"{__name__}:{Strategy.__name__}"  # by its name: another process can import it
    target = f"{wrong.__module__}:{wrong.__name__}" if check == "same_in_a_fresh_process" else wrong
    return Fault(
        "training_strategies", name, flaw, target, right, check, reason, FACTS, requires=DEFAULT, patience=patience
    )
