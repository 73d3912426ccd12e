"""A curve of bounded size, for any number of values."""

from statistics import fmean


class Trace:
    """Means of equal numbers of successive values; above ``most`` means, each pair of means is merged.

    >>> trace = Trace(most=4)
    >>> for value in range(8):
    ...     trace.add(value)
    >>> trace.values(), trace.last
    ([0.5, 2.5, 4.5, 6.5], 7)
    """

    def __init__(self, most: int) -> None:
        assert most % 2 == 0
        self.last: float | None = None
        self._most, self._each = most, 1
        self._means: list[float] = []
        self._open: list[float] = []

    def add(self, value: float) -> None:
        """Add the next value."""
        self.last = value
        self._open.append(value)
        if len(self._open) == self._each:
            self._means.append(fmean(self._open))
            self._open = []
        if len(self._means) == self._most:
            self._means = [fmean(pair) for pair in zip(self._means[::2], self._means[1::2], strict=True)]
            self._each *= 2

    def values(self, most: int | None = None) -> list[float]:
        """The means, including the incomplete last one; only the last ``most``, if given."""
        values = self._means + ([fmean(self._open)] if self._open else [])
        return values if most is None else values[-most:]
