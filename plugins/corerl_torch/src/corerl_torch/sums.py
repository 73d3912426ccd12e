"""The sums over the micro-batches of an update."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from corerl.contracts.losses import Mean, add_means
from corerl.contracts.objective import ObjectiveOutput


@dataclass
class Sums:
    """Loss, parts and metrics of micro-batches; tensors stay on their device until :meth:`numbers`."""

    losses: list[Tensor] = field(default_factory=list)
    parts: dict[str, Tensor] = field(default_factory=dict)
    metrics: dict[str, Mean] = field(default_factory=dict)

    def add(self, output: ObjectiveOutput) -> None:
        self.losses.append(output.loss.detach())
        for name, part in output.parts.items():
            self.parts[name] = self.parts[name] + part if name in self.parts else part
        add_means(self.metrics, output.metrics)

    def numbers(self) -> "Numbers":
        return Numbers(
            sum(float(loss) for loss in self.losses),
            {name: float(part) for name, part in self.parts.items()},
            {name: (float(mean.total), float(mean.count)) for name, mean in self.metrics.items()},
        )


@dataclass
class Numbers:
    """The sums as plain numbers; metrics are (sum, count)."""

    loss: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def total(cls, shares: Iterable[Mapping[str, Any]]) -> "Numbers":
        """The sum over ranks; each share is the fields of one rank's numbers; a rank without rows has no names."""
        result = cls()
        for share in shares:
            result.loss += share["loss"]
            for name, value in share["parts"].items():
                result.parts[name] = result.parts.get(name, 0.0) + value
            for name, (total, count) in share["metrics"].items():
                before = result.metrics.get(name, (0.0, 0.0))
                result.metrics[name] = (before[0] + total, before[1] + count)
        return result

    def means(self, **once: float) -> dict[str, Mean]:
        """The result of ``update``; ``once``: further numbers that exist once for each update."""
        single = {**self.parts, **once}
        return {name: Mean(*pair) for name, pair in self.metrics.items()} | {
            name: Mean(value, 1.0) for name, value in single.items()
        }
