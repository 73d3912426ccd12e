"""Sampling of tokens from logits, with separate parameters for each row of a batch."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corerl.contracts.rollout_backends import SamplingParams

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
    """The likeliest tokens of the restricted rows, (rows, width) each, in descending order.

    Attributes:
        probs: under softmax(logits / temperature); 0 for excluded tokens.
        token_ids: int64.
    """

    probs: Tensor
    token_ids: Tensor

    def sums(self) -> Tensor:
        """(rows,) float32."""
        return self.probs.sum(dim=-1, dtype=torch.float64).float()


class Sampler:
    """Draws one token for each row by inverting the distribution function; unused steps are skipped.

    min-p is applied first, then top-k, and top-p to the result of both.
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
        self._widest = int(arrays.top_k[restricted].max(initial=0)) if limited[restricted].all() else None
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
            return self._drawn(logits.argmax(dim=-1, keepdim=True), probs, None)
        kept, drawable = None, probs
        if self._restricted is not None:
            own = probs[self._restricted]
            kept = self._restrict(own)
            drawable = probs.index_copy(
                0, self._restricted, torch.zeros_like(own).scatter_(1, kept.token_ids, kept.probs)
            )
        tokens = _draw(drawable, uniforms[:, None])
        if self._greedy is not None:
            tokens = torch.where(self._greedy[:, None], logits.argmax(dim=-1, keepdim=True), tokens)
        if kept is not None and self._recorded.kept:
            assert self._restricted is not None
            probs = drawable.index_copy(0, self._restricted, drawable[self._restricted] / kept.sums()[:, None])
        return self._drawn(tokens, probs, kept)

    def _drawn(self, tokens: Tensor, probs: Tensor, kept: Kept | None) -> Drawn:
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

    def _kept_tokens(self, kept: Kept | None, device: torch.device) -> tuple[Tensor, Tensor]:
        """Values and counts; rows without a limit have none."""
        counts = torch.zeros(self._rows, dtype=torch.int64, device=device)
        if kept is None or self._restricted is None:
            return torch.zeros(0, dtype=torch.int32, device=device), counts
        real = kept.probs > 0
        return kept.token_ids[real].int(), counts.index_copy(0, self._restricted, real.sum(dim=-1))

    def _restrict(self, probs: Tensor) -> Kept:
        """Of the probabilities (restricted rows, vocabulary) those after min-p, top-k and top-p."""
        vocabulary = probs.shape[-1]
        ordered, token_ids = probs.topk(min(self._widest or vocabulary, vocabulary), dim=-1)
        ranks = torch.arange(ordered.shape[-1], device=probs.device)
        kept = ordered * ((ranks < self._top_k) & (ordered >= self._min_p * ordered[:, :1]))
        before = kept.cumsum(dim=-1, dtype=torch.float64) - kept
        kept = kept * (before < self._top_p * kept.sum(dim=-1, keepdim=True, dtype=torch.float64))
        return Kept(kept, token_ids)


def _draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """(rows, 1): the first token whose cumulative probability exceeds a row's number."""
    cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
    drawn = torch.searchsorted(cumulative, uniforms * cumulative[:, -1:], right=True)
    return drawn.clamp(max=probs.shape[-1] - 1)
