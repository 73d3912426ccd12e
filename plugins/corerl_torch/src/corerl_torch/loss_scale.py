"""Dynamic loss scaling for gradients in float16 (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2).

Gradients below 6e-8 are 0 in float16, and gradients above 65504 infinite. The loss is multiplied by a scale before the
backward pass, and the float32 gradients of the weights are divided by it, before their norm and the clipping. The scale
is a power of two, so neither operation rounds. An update whose gradient overflows is not taken, and halves the scale;
after :data:`GROWTH_INTERVAL` updates without an overflow the scale is doubled.
"""

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from corerl.contracts.training_strategies import StrategySpec
from corerl.files import read_text, reading_file
from corerl.models import compute_dtype

FILE = "loss_scale.json"
"""of a checkpoint; absent if the trainer did not compute in float16"""

INITIAL, SMALLEST, LARGEST = 2.0**16, 1.0, 2.0**24

GROWTH_INTERVAL = 200


class LossScale:
    """The scale of one model; the same on all of its ranks, because all see the same gradient norm.

    Attributes:
        enabled: whether the model computes in float16; otherwise the scale is 1 and never changes.
        value: factor of the next loss.
        taken: updates since its last change.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled, self.value, self.taken = enabled, INITIAL if enabled else 1.0, 0

    @classmethod
    def of(cls, spec: StrategySpec) -> "LossScale":
        """For a strategy's model."""
        return cls(spec.optim is not None and compute_dtype(spec.model, spec.device) == torch.float16)

    @contextmanager
    def scaled(self, parameters: Iterable[Tensor]) -> Iterator[float]:
        """Within, gradients are multiplied by the yielded scale; earlier gradients are scaled with them."""
        if not self.enabled:
            yield 1.0
            return
        trained, scale = [each for each in parameters if each.requires_grad], self.value
        _multiply(trained, scale)
        try:
            yield scale
        finally:
            _multiply(trained, 1 / scale)

    def overflowed(self, loss: float, norm: float) -> bool:
        """Count an update; whether it overflowed: it is then to be dropped, and the scale has been lowered.

        Args:
            loss, norm: of the update. A loss that is not finite is no matter of the scale, nor is the gradient of a
                finite loss with the smallest scale.
        """
        if not self.enabled or not math.isfinite(loss):
            return False
        if not math.isfinite(norm):
            lowers = self.value > SMALLEST
            self.value, self.taken = max(SMALLEST, self.value / 2), 0
            return lowers
        self.taken += 1
        if self.taken == GROWTH_INTERVAL:
            self.value, self.taken = min(LARGEST, self.value * 2), 0
        return False

    def metrics(self, *, overflowed: bool) -> dict[str, float]:
        """For the result of an update: the present scale, and whether the update was dropped."""
        return {"loss_scale": self.value, "overflows": float(overflowed)} if self.enabled else {}

    def state(self) -> str:
        """The content of :data:`FILE`."""
        return json.dumps({"value": self.value, "taken": self.taken})

    def load(self, folder: Path) -> None:
        """Read the scale of a checkpoint, if it has one.

        Raises:
            RequestError: the file is damaged.
        """
        if not self.enabled or not (folder / FILE).exists():
            return
        with reading_file(folder / FILE) as file:
            stored = json.loads(read_text(file))
            value, taken = float(stored["value"]), stored["taken"]
            if not (SMALLEST <= value <= LARGEST and math.frexp(value)[0] == 0.5):
                raise ValueError(f"the scale is {value!r:.100}, no power of two from {SMALLEST:g} to {LARGEST:g}")
            if type(taken) is not int or not 0 <= taken < GROWTH_INTERVAL:
                raise ValueError(f"the updates since its change are {taken!r:.100}")
            self.value, self.taken = value, taken


@torch.no_grad()
def _multiply(parameters: Iterable[Tensor], factor: float) -> None:
    """Multiply gradients in place; of sharded ones, this rank's shares."""
    gradients = [each.grad for each in parameters if each.grad is not None]
    shares = [each.to_local() if isinstance(each, DTensor) else each for each in gradients]
    if shares:
        torch._foreach_mul_(shares, factor)
