"""The rounding of weights for an engine: the part of training that it takes away, the distance that it makes."""

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

SAMPLE = 2**13
"""elements of a tensor that are looked at, evenly spread"""

FIRST = 3
"""streams until the weights have changed: at the start of a run, a plan of pieces looks at them once more"""

EVERY = 16
"""streams of weights from one that is measured to the next"""


Weights = Callable[[torch.dtype | None], Iterator[tuple[str, Tensor]]]


class RoundingLoss:
    """Two numbers over a sample of all weights' elements.

    ``value`` is 1 - <s, d> / <d, d>: d = w - w_0 is the change of the weights since the first stream, s = round(w) -
    round(w_0) that of the rounded ones. 0: the change arrives, as dithered noise where it is smaller than the spacing
    of rounded numbers. 1: none arrives. Weights that were rounded numbers themselves, as those of model files in 16
    bits, are near 1 until the change of a weight exceeds half of the spacing.

    ``drift`` is |round(w) - w| / |w|: the distance between the weights of engine and trainer.

    The first :data:`FIRST` streams are measured, then every :data:`EVERY`-th.

    Attributes:
        value: of the last stream that was measured; None before the weights have changed.
        drift: of the last stream that was measured; None before the first.
    """

    def __init__(self) -> None:
        self.value: float | None = None
        self.drift: float | None = None
        self._first: dict[str, Tensor] = {}
        self._streams = 0

    def stream(self, weights: Weights, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
        """The weights in ``dtype``, for :meth:`corerl.contracts.training_strategies.TrainingStrategy.weights`.

        Args:
            weights: the weights in a dtype; None: as the model holds them.
        """
        if dtype is None:
            return weights(None)
        return self._measured(weights(None), dtype) if self._is_due(dtype) else weights(dtype)

    def look(self, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype | None) -> None:
        """As :meth:`stream`, of weights that are rounded elsewhere."""
        if dtype is not None and self._is_due(dtype):
            for _ in self._measured(iter(weights), dtype, rounds=False):
                pass

    def _is_due(self, dtype: torch.dtype) -> bool:
        self._streams += 1
        return dtype != torch.float32 and (self._streams <= FIRST or self._streams % EVERY == 1)

    def metrics(self) -> dict[str, float]:
        """By name, without numbers that are not known yet."""
        named = {"weights/update_lost_in_rounding": self.value, "weights/engine_drift": self.drift}
        return {name: value for name, value in named.items() if value is not None}

    @torch.no_grad()
    def _measured(
        self, weights: Iterator[tuple[str, Tensor]], dtype: torch.dtype, *, rounds: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Pass a stream on, rounded; measured once it has been read to its end."""
        kept = whole = distance = norm = 0.0
        for name, tensor in weights:
            if not tensor.is_floating_point():
                yield name, tensor
                continue
            if tensor.dtype != dtype and tensor.numel():
                present = self._sample(tensor)
                first = self._first.setdefault(name, present)
                rounded, change = present.to(dtype).float(), present - first
                error = rounded - present
                each = tensor.numel() / len(present)
                kept += each * float((rounded - first.to(dtype).float()) @ change)
                whole += each * float(change @ change)
                distance += each * float(error @ error)
                norm += each * float(present @ present)
            yield name, tensor.to(dtype) if rounds else tensor
        if whole:
            self.value = 1 - kept / whole
        if norm:
            self.drift = math.sqrt(distance / norm)

    def _sample(self, tensor: Tensor) -> Tensor:
        """(about SAMPLE,) float32 on the CPU, a copy; an odd step, so that it does not stay in a few columns."""
        step = max(1, tensor.numel() // SAMPLE) | 1
        return tensor.detach().reshape(-1)[::step].to("cpu", torch.float32, copy=True)
