"""The order in which prompts are trained on: seeded, and resumable at any batch."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from corerl.errors import ConfigError, DataError


class PromptSampler:
    """Batches of prompt indices, epoch after epoch without end.

    Every epoch has an order of its own, which depends on (seed, epoch) alone; its last ``size % batch_size`` prompts
    are left out. The state is two integers, so a loaded sampler goes on exactly where the saved one stood.

    Args:
        size: number of prompts.
        batch_size: indices in a batch.
        shuffle: False takes 0, 1, … in every epoch.
        seed: 0 or more.

    Raises:
        ConfigError: ``size`` is less than ``batch_size``.
    """

    def __init__(self, size: int, batch_size: int, shuffle: bool, seed: int) -> None:
        if size < batch_size:
            raise ConfigError(
                "data.train_batch_size",
                f"is {batch_size}, but the training data has {size} prompts after filtering; make it at most {size}",
            )
        self._identity = {"size": size, "batch_size": batch_size, "shuffle": shuffle, "seed": seed}
        self._size, self._batch_size, self._shuffle, self._seed = size, batch_size, shuffle, seed
        self.epoch = 0
        """the epoch of the next batch, from 0"""
        self.position = 0
        """batches of this epoch already given, in [0, steps_per_epoch)"""
        self._order = self._epoch_order()

    @property
    def steps_per_epoch(self) -> int:
        return self._size // self._batch_size

    def __iter__(self) -> Iterator[list[int]]:
        return self

    def __next__(self) -> list[int]:
        start = self.position * self._batch_size
        batch: list[int] = self._order[start : start + self._batch_size].tolist()
        self.position += 1
        if self.position == self.steps_per_epoch:
            self.epoch, self.position = self.epoch + 1, 0
            self._order = self._epoch_order()
        return batch

    def state_dict(self) -> dict[str, int | bool]:
        """Plain values, for a checkpoint."""
        return {"epoch": self.epoch, "position": self.position, **self._identity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            DataError: the number of prompts is not the one that was saved.
            ConfigError: the batch size, the seed or the shuffling is not the one that was saved.
        """
        if state["size"] != self._size:
            raise DataError(
                f"the checkpoint was made with {state['size']} training prompts and there are {self._size} now: "
                "resume with the same data.train_files, length limit and filter"
            )
        for name, key in (("batch_size", "train_batch_size"), ("seed", "seed"), ("shuffle", "shuffle")):
            if state[name] != self._identity[name]:
                raise ConfigError(f"data.{key}", f"is {self._identity[name]}, but the checkpoint has {state[name]}")
        self.epoch, self.position = state["epoch"], state["position"]
        self._order = self._epoch_order()

    def _epoch_order(self) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        if not self._shuffle:
            return np.arange(self._size)
        return np.random.default_rng([self._seed, self.epoch]).permutation(self._size)
