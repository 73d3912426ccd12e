"""The adapters that the engine holds: which number each client's weights have, and which are replaced."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence


class EngineAdapters:
    """Numbers, below ``count``, of weights in the engine; the least recently used are replaced.

    Args:
        count: ``rollout.adapters``; 1 for an engine that gets all weights.

    Attributes:
        since: 1 and more: grows if the engine has lost what it held.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._number: OrderedDict[Hashable, int] = OrderedDict()
        """of each held key, the least recently used first"""
        self._version, self.since = 0, 1

    def place(self, keys: Iterable[Hashable]) -> dict[Hashable, tuple[int, int | None]]:
        """A number for each of at most ``count`` keys, and the version to send its weights as; None: they are there.

        An update replaces the adapter ``version % count`` (:class:`corerl.contracts.rollout_backends.RolloutBackend`).
        """
        wanted = list(dict.fromkeys(keys))
        held = [key for key in wanted if key in self._number]
        for key in held:
            self._number.move_to_end(key)
        placed: dict[Hashable, tuple[int, int | None]] = {key: (self._number[key], None) for key in held}
        for key in wanted:
            if key not in placed:
                number = self._free()
                self._version += 1 + (number - self._version - 1) % self.count
                placed[key] = number, self._version
                self._number[key] = number
        return placed

    def forget(self) -> None:
        """After a failed update, or a new engine: nothing is held."""
        self._number.clear()
        self.since += 1

    def _free(self) -> int:
        if len(self._number) < self.count:
            taken = set(self._number.values())
            return next(number for number in range(self.count) if number not in taken)
        _, number = self._number.popitem(last=False)
        return number


def rounds(keys: Sequence[Hashable], count: int) -> list[list[int]]:
    """Places of keys, cut into rounds of at most ``count`` different keys each, in their order."""
    made: list[list[int]] = []
    for place, key in enumerate(keys):
        fitting = (each for each in made if len(each) < count and all(keys[other] != key for other in each))
        if (found := next(fitting, None)) is None:
            made.append([place])
        else:
            found.append(place)
    return made
