"""The one source of randomness of a run."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np


def derived_seed(seed: int, *parts: bytes) -> int:
    """A seed, 0 to 2**63 - 1, for each seed and sequence of parts."""
    digest = hashlib.blake2b(seed.to_bytes(16, "little", signed=True), digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return int.from_bytes(digest.digest(), "little") >> 1


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
