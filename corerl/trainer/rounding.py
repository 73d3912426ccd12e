"""The part of training that the rounding of weights for an engine takes away."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

SAMPLE = 2**13
"""elements of a tensor that are looked at, evenly spread"""

EVERY = 16
"""streams of weights from one that is measured to the next"""


class RoundingLoss:
    """1 - <s, d> / <d, d>, over a sample of all weights' elements.

    d = w - w_0 is the change of the weights since the first stream, s = round(w) - round(w_0) that of the rounded ones.
    0: the change arrives, as dithered noise where it is smaller than the spacing of rounded numbers. 1: none arrives,
    which happens to changes of weights that were rounded numbers themselves, as the base model's under LoRA.

    Attributes:
        value: of the last stream that was measured; None before the second.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.value: float | None = None
        self._dtype = dtype
        self._first: dict[str, Tensor] = {}
        self._streams = 0

    def is_due(self) -> bool:
        """Whether the stream that begins is to be measured: the first two are, then every :data:`EVERY`-th."""
        self._streams += 1
        return self._dtype != torch.float32 and (self._streams <= 2 or self._streams % EVERY == 1)

    @torch.no_grad()
    def rounded(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Pass a stream on, rounded; measured once it has been read to its end.

        Args:
            weights: as the model holds them.
        """
        kept = whole = 0.0
        for name, tensor in weights:
            if not tensor.is_floating_point():
                yield name, tensor
                continue
            if tensor.dtype != self._dtype and tensor.numel():
                present = self._sample(tensor)
                first = self._first.setdefault(name, present)
                change = present - first
                arrived = present.to(self._dtype).float() - first.to(self._dtype).float()
                each = tensor.numel() / len(present)
                kept += each * float(arrived @ change)
                whole += each * float(change @ change)
            yield name, tensor.to(self._dtype)
        if whole:
            self.value = 1 - kept / whole

    def _sample(self, tensor: Tensor) -> Tensor:
        """(about SAMPLE,) float32 on the CPU, a copy; an odd step, so that it does not stay in a few columns."""
        step = max(1, tensor.numel() // SAMPLE) | 1
        return tensor.detach().reshape(-1)[::step].to("cpu", torch.float32, copy=True)
