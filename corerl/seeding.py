"""The one source of randomness of a run."""

from dataclasses import dataclass
from typing import Any

import numpy as np


def episode_seed(seed: int, sample: int, turn: int) -> int:
    """The seed of one turn in one of the episodes of a request whose seed is ``seed``."""
    sequence = np.random.SeedSequence(seed, spawn_key=(sample, turn))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass(frozen=True)
class Seeds:
    """Independent seeds, derived from ``trainer.seed`` and the place of use alone.

    Without a global state, evaluation does not affect training, and a resumed run needs no saved state.
    """

    seed: int

    def training_requests(self, step: int, count: int, round_: int = 0) -> list[int]:
        """One seed for each request of a training step; ``round_`` counts the batches generated in it."""
        return self._draw(count, 0, step, *([round_] if round_ else []))

    def validation_requests(self, count: int) -> list[int]:
        """One seed for each validation request; the same in every evaluation."""
        return self._draw(count, 1, 0)

    def uniforms(self, step: int, mini_batch: int, shape: tuple[int, ...]) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """Independent numbers in [0, 1) for the tokens of one mini-batch."""
        return np.random.default_rng(self._sequence(2, step, mini_batch)).random(shape)

    def _draw(self, count: int, *place: int) -> list[int]:
        return [int(word >> np.uint64(1)) for word in self._sequence(*place).generate_state(count, np.uint64)]

    def _sequence(self, *place: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.seed, spawn_key=place)
