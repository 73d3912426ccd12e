"""Sampling of tokens from logits, with separate parameters for each row of a batch."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corerl.contracts.rollout_backends import SamplingParams

NARROW = 1024
"""tokens"""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def row_key(seed: int, prompt_ids: Sequence[int], sample: int) -> int:
    """64 bits that identify one sample of one prompt under one seed."""
    prompt = zlib.crc32(np.asarray(prompt_ids, dtype=np.int64).tobytes())
    key = _mix(np.array([seed % 2**64], dtype=np.uint64)) + np.array([prompt << 32 | sample], dtype=np.uint64)
    return int(_mix(key)[0])


def uniforms(keys: NDArray[np.uint64], start: int, steps: int) -> NDArray[np.float64]:
    """(steps, rows) numbers in [0, 1): token ``start`` + i of a row depends only on the row's key.

    SplitMix64 (Steele, Lea, Flood 2014) in counter form.
    """
    counters = np.arange(start + 1, start + steps + 1, dtype=np.uint64) * _GOLDEN
    bits: NDArray[np.float64] = (_mix(keys + counters[:, None]) >> np.uint64(11)).astype(np.float64)
    return bits * 2.0**-53


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class SamplingArrays(NamedTuple):
    """Temperature, top-p, top-k and min-p, (rows,) each."""

    temperature: NDArray[np.float64]
    top_p: NDArray[np.float64]
    top_k: NDArray[np.int64]
    min_p: NDArray[np.float64]

    @classmethod
    def of(cls, params: Sequence[SamplingParams]) -> "SamplingArrays":
        return cls(
            np.array([each.temperature for each in params], dtype=np.float64),
            np.array([each.top_p for each in params], dtype=np.float64),
            np.array([each.top_k for each in params], dtype=np.int64),
            np.array([each.min_p for each in params], dtype=np.float64),
        )

    def select(self, rows: NDArray[np.int64]) -> "SamplingArrays":
        return SamplingArrays(self.temperature[rows], self.top_p[rows], self.top_k[rows], self.min_p[rows])


class Recorded(NamedTuple):
    """The columns of tokens to record (``rollout.record``).

    Attributes:
        kept: ``kept_tokens``.
        top: tokens of a position in ``top_tokens`` and ``top_log_probs``; 0: not recorded.
    """

    kept: bool = False
    top: int = 0


NOTHING = Recorded()


class Drawn(NamedTuple):
    """One token for each row.

    Attributes:
        tokens: (rows,) int64.
        probs: (rows,) float32, under softmax(logits / temperature); over the kept set if ``kept_tokens`` is recorded.
        columns: name -> (values of all rows end to end, (rows,) int64 number of values of each).
    """

    tokens: Tensor
    probs: Tensor
    columns: dict[str, tuple[Tensor, Tensor]]


class Kept(NamedTuple):
    """The likeliest tokens of some restricted rows, (n, width) each, in descending order.

    Attributes:
        rows: (n,) int64, their numbers among the restricted rows.
        probs: under softmax(logits / temperature); 0 for excluded tokens.
        token_ids: int64.
    """

    rows: Tensor
    probs: Tensor
    token_ids: Tensor


class Sampler:
    """Draws one token for each row by inverting the distribution function; unused steps are skipped.

    min-p is applied first, then top-k, and top-p to the result of both. Without top-k the likeliest ``NARROW`` tokens
    are ordered, and the whole vocabulary for rows that keep more.
    """

    def __init__(self, arrays: SamplingArrays, device: torch.device, recorded: Recorded = NOTHING) -> None:
        self._recorded, self._rows = recorded, len(arrays.top_k)
        greedy = arrays.temperature == 0
        scale = np.where(greedy, 1.0, arrays.temperature)
        self._scale = None if (scale == 1).all() else torch.from_numpy(scale).to(device, torch.float32)[:, None]
        self._all_greedy = bool(greedy.all())
        self._greedy = torch.from_numpy(greedy).to(device) if greedy.any() else None
        limited = arrays.top_k > 0
        restricted = np.flatnonzero((limited | (arrays.top_p < 1) | (arrays.min_p > 0)) & ~greedy)
        self._restricted = torch.from_numpy(restricted).to(device) if len(restricted) else None
        self._is_open = not limited[restricted].all()
        self._width = max(int(arrays.top_k[restricted].max(initial=0)), NARROW if self._is_open else 0)
        top_k = np.where(limited, arrays.top_k, np.iinfo(np.int64).max)[restricted]
        self._top_k = torch.from_numpy(top_k).to(device)[:, None]
        self._top_p = torch.from_numpy(arrays.top_p[restricted]).to(device)[:, None]
        self._min_p = torch.from_numpy(arrays.min_p[restricted]).to(device)[:, None]

    def __call__(self, logits: Tensor, uniforms: Tensor) -> Drawn:
        """Sample.

        Args:
            logits: (rows, vocabulary) of any floating dtype.
            uniforms: (rows,) float64 in [0, 1).
        """
        logits = logits.float()
        probs = (logits if self._scale is None else logits / self._scale).softmax(dim=-1)
        if self._all_greedy:
            return self._drawn(logits.argmax(dim=-1, keepdim=True), probs, [])
        kept, drawable = list[Kept](), probs
        if self._restricted is not None:
            own = probs[self._restricted]
            kept = self._restrict(own)
            for each in kept:
                own[each.rows] = own.new_zeros(len(each.rows), own.shape[1]).scatter_(1, each.token_ids, each.probs)
            drawable = probs.index_copy(0, self._restricted, own)
        tokens = _draw(drawable, uniforms[:, None])
        if self._greedy is not None:
            tokens = torch.where(self._greedy[:, None], logits.argmax(dim=-1, keepdim=True), tokens)
        if self._restricted is not None and self._recorded.kept:
            sums = own.sum(dim=-1, dtype=torch.float64).float()
            probs = drawable.index_copy(0, self._restricted, own / sums[:, None])
        return self._drawn(tokens, probs, kept)

    def _drawn(self, tokens: Tensor, probs: Tensor, kept: Sequence[Kept]) -> Drawn:
        columns = {}
        if self._recorded.kept:
            columns["kept_tokens"] = self._kept_tokens(kept, tokens.device)
        if self._recorded.top:
            top, token_ids = probs.topk(min(self._recorded.top, probs.shape[-1]), dim=-1)
            real = top > 0
            counts = real.sum(dim=-1)
            columns["top_tokens"] = token_ids[real].int(), counts
            columns["top_log_probs"] = top[real].log(), counts
        return Drawn(tokens[:, 0], probs.gather(1, tokens)[:, 0], columns)

    def _kept_tokens(self, kept: Sequence[Kept], device: torch.device) -> tuple[Tensor, Tensor]:
        """Values and counts; rows without a limit have none."""
        counts = torch.zeros(self._rows, dtype=torch.int64, device=device)
        if self._restricted is None:
            return torch.zeros(0, dtype=torch.int32, device=device), counts
        values: dict[int, Tensor] = {}
        for each in kept:
            real = each.probs > 0
            own = real.sum(dim=-1)
            counts[self._restricted[each.rows]] = own
            values |= zip(each.rows.tolist(), torch.split(each.token_ids[real].int(), own.tolist()), strict=True)
        return torch.cat([values[row] for row in sorted(values)]), counts

    def _restrict(self, probs: Tensor) -> list[Kept]:
        """Of the probabilities (restricted rows, vocabulary) those after min-p, top-k and top-p."""
        rows, vocabulary = torch.arange(len(probs), device=probs.device), probs.shape[-1]
        kept, is_whole = self._likeliest(probs, rows, min(self._width, vocabulary))
        if not self._is_open or bool(is_whole.all()):
            return [kept]
        wide, _ = self._likeliest(probs[~is_whole], rows[~is_whole], vocabulary)
        return [Kept(*(each[is_whole] for each in kept)), wide]

    def _likeliest(self, probs: Tensor, rows: Tensor, width: int) -> tuple[Kept, Tensor]:
        """The kept tokens among the ``width`` likeliest ones, and (n,) bool, whether a row keeps no others."""
        top_k, top_p, min_p = self._top_k[rows], self._top_p[rows], self._min_p[rows]
        ordered, token_ids = probs.topk(width, dim=-1)
        least = min_p * ordered[:, :1]
        kept = ordered * ((torch.arange(width, device=probs.device) < top_k) & (ordered >= least))
        mass = kept.sum(dim=-1, keepdim=True, dtype=torch.float64)
        if self._is_open:
            whole = probs.where(probs >= least, 0.0).sum(dim=-1, keepdim=True, dtype=torch.float64)
            mass = torch.where(top_k > width, whole, mass)
        sums = kept.cumsum(dim=-1, dtype=torch.float64)
        is_whole = (top_k <= width) | (sums[:, -1:] >= top_p * mass) | (ordered[:, -1:] < least)
        kept = kept * (sums - kept < top_p * mass)
        return Kept(rows, kept, token_ids), is_whole[:, 0] | (width == probs.shape[-1])


def _draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """(rows, 1): the first token whose cumulative probability exceeds a row's number."""
    cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
    drawn = torch.searchsorted(cumulative, uniforms * cumulative[:, -1:], right=True)
    return drawn.clamp(max=probs.shape[-1] - 1)
