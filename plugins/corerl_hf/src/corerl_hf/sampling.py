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
    """Temperature, top-p and top-k, (rows,) each."""

    temperature: NDArray[np.float64]
    top_p: NDArray[np.float64]
    top_k: NDArray[np.int64]

    @classmethod
    def of(cls, params: Sequence[SamplingParams]) -> "SamplingArrays":
        return cls(
            np.array([each.temperature for each in params], dtype=np.float64),
            np.array([each.top_p for each in params], dtype=np.float64),
            np.array([each.top_k for each in params], dtype=np.int64),
        )

    def select(self, rows: NDArray[np.int64]) -> "SamplingArrays":
        return SamplingArrays(self.temperature[rows], self.top_p[rows], self.top_k[rows])


class Sampler:
    """Draws one token for each row by inverting the distribution function; unused steps are skipped.

    If a row has both limits, top-k is applied first, and top-p to its result.
    """

    def __init__(self, arrays: SamplingArrays, device: torch.device) -> None:
        greedy = arrays.temperature == 0
        scale = np.where(greedy, 1.0, arrays.temperature)
        self._scale = None if (scale == 1).all() else torch.from_numpy(scale).to(device, torch.float32)[:, None]
        self._all_greedy = bool(greedy.all())
        self._greedy = torch.from_numpy(greedy).to(device) if greedy.any() else None
        limited = arrays.top_k > 0
        restricted = np.flatnonzero((limited | (arrays.top_p < 1)) & ~greedy)
        self._restricted = torch.from_numpy(restricted).to(device) if len(restricted) else None
        self._widest = int(arrays.top_k[restricted].max(initial=0)) if limited[restricted].all() else None
        top_k = np.where(limited, arrays.top_k, np.iinfo(np.int64).max)[restricted]
        self._top_k = torch.from_numpy(top_k).to(device)[:, None]
        self._top_p = torch.from_numpy(arrays.top_p[restricted]).to(device)[:, None]

    def __call__(self, logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Sample.

        Args:
            logits: (rows, vocabulary) of any floating dtype.
            uniforms: (rows,) float64 in [0, 1).

        Returns:
            (rows,) int64 tokens and their (rows,) float32 probabilities under softmax(logits / temperature).
        """
        logits = logits.float()
        probs = (logits if self._scale is None else logits / self._scale).softmax(dim=-1)
        if self._all_greedy:
            tokens = logits.argmax(dim=-1, keepdim=True)
        else:
            tokens = self._draw(probs, uniforms[:, None])
            if self._greedy is not None:
                tokens = torch.where(self._greedy[:, None], logits.argmax(dim=-1, keepdim=True), tokens)
        return tokens[:, 0], probs.gather(1, tokens)[:, 0]

    def _draw(self, probs: Tensor, uniforms: Tensor) -> Tensor:
        """(rows, 1): the first token whose cumulative probability exceeds a row's number."""
        if self._restricted is not None:
            probs = probs.index_copy(0, self._restricted, self._restrict(probs[self._restricted]))
        cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
        drawn = torch.searchsorted(cumulative, uniforms * cumulative[:, -1:], right=True)
        return drawn.clamp(max=probs.shape[-1] - 1)

    def _restrict(self, probs: Tensor) -> Tensor:
        """(restricted rows, vocabulary) probabilities after top-k and top-p; 0 for excluded tokens."""
        vocabulary = probs.shape[-1]
        ordered, token_ids = probs.topk(min(self._widest or vocabulary, vocabulary), dim=-1)
        kept = ordered * (torch.arange(ordered.shape[-1], device=probs.device) < self._top_k)
        before = kept.cumsum(dim=-1, dtype=torch.float64) - kept
        kept = kept * (before < self._top_p * kept.sum(dim=-1, keepdim=True, dtype=torch.float64))
        return torch.zeros_like(probs).scatter_(1, token_ids, kept)
