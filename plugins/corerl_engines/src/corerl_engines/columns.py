"""Columns of tokens from the engine's process."""

from typing import Any

from corerl.contracts.token_columns import TokenValues


class Columns:
    """Takes the columns of one sample after the other from the bytes of an answer
    (:func:`corerl_engines.remote.frames.pack_columns`)."""

    def __init__(self, payload: bytes) -> None:
        self._payload, self._start = payload, 0

    @property
    def rest(self) -> int:
        """Bytes that were not taken."""
        return len(self._payload) - self._start

    def take(self, facts: Any) -> dict[str, TokenValues]:
        """The columns of the next sample.

        Raises:
            TypeError, ValueError: the facts are invalid, or describe more bytes than there are.
        """
        return {
            name: TokenValues.from_bytes(dtype, shape, self._next(values), self._next(counts))
            for name, dtype, shape, values, counts in facts
        }

    def _next(self, size: Any) -> bytes:
        if type(size) is not int or not 0 <= size <= self.rest:
            raise ValueError(f"{size!r:.20} bytes of a column, {self.rest} are left")
        self._start += size
        return self._payload[self._start - size : self._start]
