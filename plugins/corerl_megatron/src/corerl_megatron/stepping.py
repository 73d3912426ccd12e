"""The trained parameters of a model shared by ranks, for single steps: see :mod:`corerl_torch.stepping`."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Size, Tensor

from corerl.errors import ConfigError
from corerl_megatron.adapters import shapes_of
from corerl_megatron.optimizer import PlainOptimizer
from corerl_torch.stepping import Of

OFFLOADS = ("param_offload", "grad_offload", "optimizer_offload")


class SharedWeights:
    """See :class:`corerl_torch.stepping.TrainedWeights`.

    Args:
        strategy: a :class:`corerl_megatron.strategy.MegatronStrategy` with an optimizer.

    Raises:
        ConfigError: the optimizer is megatron-core's, or an option moves parameters between calls.
    """

    head = ""
    """there are no adapters of the output layer"""

    def __init__(self, strategy: Any) -> None:
        if not isinstance(strategy.optimizer, PlainOptimizer):
            raise ConfigError(
                "actor.strategy", "megatron takes single steps with adapters, or on the CPU: set model.lora_rank"
            )
        for name in OFFLOADS:
            if getattr(strategy.options, name):
                raise ConfigError(f"actor.strategy.{name}", "moves what single steps of clients need: leave it out")
        self._strategy, self._plain = strategy, strategy.optimizer
        self._table = strategy.adapted or strategy.weights_table
        self.optimizer: torch.optim.Optimizer = self._plain.optimizer
        self.own: Mapping[str, Tensor] = {
            name: each for name, each in self._table.parameters.items() if each.requires_grad
        }
        adapted = strategy.adapted is not None
        self.shapes: Mapping[str, Size] = shapes_of(strategy.spec) if adapted else strategy.weights_table.shapes
        self.config = strategy.meta.config
        self.speaks: bool = strategy.ranks.speaks

    def gather(self, of: Of) -> Iterator[tuple[str, Tensor]]:
        for name, whole in self._table.stream(of):
            yield name, whole.clone()

    def scatter(self, whole: Mapping[str, Tensor], of: Of) -> None:
        self._table.fill(whole, self._strategy.spec.device, torch.float32, of)

    def norm(self) -> Tensor:
        without = [each for each in self.own.values() if each.grad is None]
        norm = self._plain.reduce()
        for each in without:  # those that this client does not train
            each.grad = None
        return torch.tensor(norm)

    def set_scale(self, factor: float) -> None:
        self._strategy.adapted.set_scale(factor)
