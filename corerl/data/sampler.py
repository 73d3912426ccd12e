"""The order in which prompts are trained on: seeded, and resumable at any batch."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
        order: epoch and seed -> its indices, as many as there are prompts, in place of ``shuffle``.

    Raises:
        ConfigError: ``size`` is less than ``batch_size``.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        shuffle: bool,
        seed: int,
        order: Callable[[int, int], Sequence[int]] | None = None,
    ) -> None:
        if size < batch_size:
            raise ConfigError(
                "data.train_batch_size",
                f"is {batch_size}, but the training data has {size} prompts after filtering; make it at most {size}",
            )
        self._identity = {"size": size, "batch_size": batch_size, "shuffle": shuffle, "seed": seed}
        self._size, self._batch_size, self._shuffle, self._seed = size, batch_size, shuffle, seed
        self._order = order
        self.epoch = 0
        """the epoch of the next batch, from 0"""
        self.position = 0
        """batches of this epoch already given, in [0, steps_per_epoch)"""
        self.next = 0
        """the lowest place of the order whose group was not trained when the state was saved"""
        self.done: frozenset[int] = frozenset()
        """higher places, of groups that were trained or dropped by then"""
        self._orders: dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
        """the order of the epoch that was last asked for"""

    @property
    def steps_per_epoch(self) -> int:
        return self._size // self._batch_size

    def __iter__(self) -> Iterator[list[int]]:
        return self

    def __next__(self) -> list[int]:
        start = self.position * self._batch_size
        batch: list[int] = self._order_of(self.epoch)[start : start + self._batch_size].tolist()
        self.position += 1
        if self.position == self.steps_per_epoch:
            self.epoch, self.position = self.epoch + 1, 0
        return batch

    def prompt(self, number: int) -> int:
        """The index at a place of the order of all epochs; ``number`` is 0 or more."""
        epoch, place = divmod(number, self.steps_per_epoch * self._batch_size)
        return int(self._order_of(epoch)[place])

    def epoch_of(self, number: int) -> int:
        """The epoch of a place of that order."""
        return number // (self.steps_per_epoch * self._batch_size)

    def state_at(self, number: int, done: Iterable[int] = ()) -> dict[str, Any]:
        """As :meth:`state_dict`, with :attr:`next` and :attr:`done`."""
        epoch, place = divmod(number, self.steps_per_epoch * self._batch_size)
        position = place // self._batch_size
        return {"epoch": epoch, "position": position, **self._identity, "next": number, "done": sorted(done)}

    def state_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        given = (self.epoch * self.steps_per_epoch + self.position) * self._batch_size
        return self.state_at(max(self.next, given), self.done)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            DataError: the number of prompts is not the one that was saved.
            ConfigError: the batch size, the seed or the shuffling is not the one that was saved.
            KeyError, TypeError, ValueError: a value is none that :meth:`state_dict` gives.
        """
        if state["size"] != self._size:
            raise DataError(
                f"the checkpoint was made with {state['size']} training prompts and there are {self._size} now: "
                "resume with the same data.train_files, length limit and filter"
            )
        for name, key in (("batch_size", "train_batch_size"), ("seed", "seed"), ("shuffle", "shuffle")):
            if state[name] != self._identity[name]:
                own, its = (json.dumps(values[name]) for values in (self._identity, state))
                raise ConfigError(
                    f"data.{key}", f"is {own}, but the checkpoint has {its}: data.{key}={its} continues its order"
                )
        epoch, position = _places([state["epoch"], state["position"]])
        trained = state.get("next", (epoch * self.steps_per_epoch + position) * self._batch_size)
        self.next, *done = _places([trained, *state.get("done", ())])
        self.epoch, self.position, self.done = epoch, position, frozenset(done)

    def _order_of(self, epoch: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        if epoch not in self._orders:
            order = np.random.default_rng([self._seed, epoch]).permutation(self._size)
            order = order if self._shuffle else np.arange(self._size)
            if self._order is not None:
                order = np.asarray(self._order(epoch, self._seed), dtype=np.int64)
                if order.shape != (self._size,) or order.min() < 0 or order.max() >= self._size:
                    raise ConfigError(
                        "data.sampler", f"must give {self._size} indices from 0 to {self._size - 1} for each epoch"
                    )
            self._orders = {epoch: order}
        return self._orders[epoch]


def _places(values: Iterable[Any]) -> list[int]:
    """Places of the order, or parts of one.

    Raises:
        ValueError: a value is none.
    """
    places = list(values)
    for value in places:
        if type(value) is not int or not 0 <= value < 2**62:
            raise ValueError(f"a place of the order of the prompts is {value!r:.100}")
    return places
