"""The one source of randomness of a run."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Seeds:
    """Independent seeds for everything random, derived from ``trainer.seed`` and the place of use alone.

    Nothing draws from a global state: evaluation does not disturb training, and a resumed run needs no saved one.
    """

    seed: int

    def training_requests(self, step: int, count: int) -> list[int]:
        """One seed for each request of a training step."""
        return self._draw(0, step, count)

    def validation_requests(self, count: int) -> list[int]:
        """One seed for each validation request; the same in every evaluation."""
        return self._draw(1, 0, count)

    def _draw(self, stream: int, step: int, count: int) -> list[int]:
        state = np.random.SeedSequence(self.seed, spawn_key=(stream, step)).generate_state(count, np.uint64)
        return [int(word >> np.uint64(1)) for word in state]
