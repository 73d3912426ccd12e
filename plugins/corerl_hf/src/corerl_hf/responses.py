"""The results of a batch so far, on the host: tokens, log-probs, and the unfinished rows."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from corerl.contracts.rollout_backends import Completion, SamplingParams
from corerl.errors import NonFiniteError
from corerl_hf.recording import RecordedColumn

FinishReason = Literal["stop", "length", "abort"]


class Responses:
    """The responses of R rows that start together.

    Args:
        params: one for each row.

    Attributes:
        going: (R,) bool, the unfinished rows.
        generated: tokens generated so far by each unfinished row.
    """

    def __init__(self, params: Sequence[SamplingParams]) -> None:
        rows = len(params)
        self.going = np.ones(rows, dtype=bool)
        self.generated = 0
        self._limits = np.array([each.max_tokens for each in params])
        self._stop_ids = _stop_ids(params)
        self._tokens = np.zeros((rows, int(self._limits.max())), dtype=np.int64)
        self._log_probs = np.zeros(self._tokens.shape, dtype=np.float32)
        self._lengths = np.zeros(rows, dtype=np.int64)
        self._reasons: list[FinishReason] = ["length"] * rows
        self._taken = np.zeros(rows, dtype=bool)
        self._columns: dict[str, RecordedColumn] = {}

    def remaining(self) -> int:
        """Tokens that the longest row may still generate; 0 if all rows are finished."""
        return int((self._limits[self.going] - self.generated).max(initial=0))

    def add(
        self,
        rows: NDArray[np.int64],
        tokens: NDArray[np.int64],
        log_probs: NDArray[np.float32],
        columns: Sequence[Mapping[str, tuple[Tensor, Tensor]]] = (),
    ) -> None:
        """Add the next tokens; tokens after a row's end are ignored.

        Args:
            rows: (r,) indices into the R rows, including every unfinished row.
            tokens, log_probs: (steps, r); steps is at most :meth:`remaining`.
            columns: of each step, :attr:`corerl_hf.sampling.Drawn.columns`.
        """
        for step in columns:
            for name, (values, counts) in step.items():
                column = self._columns.setdefault(name, RecordedColumn(len(self.going)))
                column.add(rows, values.cpu().numpy(), counts.cpu().numpy())
        steps = len(tokens)
        places = slice(self.generated, self.generated + steps)
        self._tokens[rows, places] = tokens.T
        self._log_probs[rows, places] = log_probs.T
        self.generated += steps
        ends = self._limits[rows]
        if self._stop_ids is not None:
            hits = (tokens.T[:, :, None] == self._stop_ids[rows, None, :]).any(axis=2)
            stops = np.where(hits.any(axis=1), places.start + hits.argmax(axis=1) + 1, np.iinfo(np.int64).max)
            for row in rows[(stops <= ends) & self.going[rows]]:
                self._reasons[row] = "stop"
            ends = np.minimum(ends, stops)
        over = (ends <= self.generated) & self.going[rows]
        self._lengths[rows[over]] = ends[over]
        self.going[rows[over]] = False

    def tokens(self, row: int) -> list[int]:
        """Those of an unfinished row."""
        tokens: list[int] = self._tokens[row, : self.generated].tolist()
        return tokens

    def stop(self, row: int, length: int) -> None:
        """End an unfinished row behind ``length`` tokens."""
        self.going[row] = False
        self._lengths[row] = length
        self._reasons[row] = "stop"

    def abort(self, rows: Sequence[int]) -> None:
        """End the unfinished ones of these rows."""
        for row in rows:
            if self.going[row]:
                self.going[row] = False
                self._lengths[row] = self.generated
                self._reasons[row] = "abort"

    def take_finished(self, weight_version: int) -> dict[int, Completion]:
        """Row -> response, for the rows that have finished since the last call.

        Raises:
            NonFiniteError: the model gave a logit that is NaN or infinite.
        """
        found = {}
        for row in np.flatnonzero(~self.going & ~self._taken).tolist():
            length = self._lengths[row]
            log_probs = self._log_probs[row, :length]
            if not np.isfinite(log_probs).all():
                raise NonFiniteError(
                    "the model's logits are not finite: its weights are broken or its dtype too narrow"
                )
            tokens = self._tokens[row, :length].tolist()
            columns = {name: column.take(row, len(tokens)) for name, column in self._columns.items()}
            found[row] = Completion(tokens, log_probs.tolist(), self._reasons[row], weight_version, (), columns)
        self._taken = ~self.going
        return found


def _stop_ids(params: Sequence[SamplingParams]) -> NDArray[np.int64] | None:
    """(rows, most stop tokens) padded with -1, or None if no row has a stop token."""
    stops = [() if each.ignore_eos else each.stop_token_ids for each in params]
    width = max(len(each) for each in stops)
    if width == 0:
        return None
    return np.array([list(each) + [-1] * (width - len(each)) for each in stops], dtype=np.int64)
