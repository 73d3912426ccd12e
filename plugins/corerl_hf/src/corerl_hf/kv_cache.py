"""A KV cache written in place, whose rows can be repeated, reordered and dropped."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import LongTensor, Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

SPARE_COLUMNS = 64
"""tokens for which memory is added when a layer is full"""


class InPlaceLayer(DynamicLayer):
    """Full attention: the contents of transformers' ``DynamicLayer``, without a copy of the whole for every token.

    ``keys`` and ``values`` are views (rows, heads, tokens so far, head size) of larger buffers.
    """

    keys: Tensor
    values: Tensor
    _key_buffer: Tensor
    _value_buffer: Tensor

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self._reserve(key_states[:, :, :0], value_states[:, :, :0], key_states.shape[-2])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.keys.shape[-2]
        end = start + key_states.shape[-2]
        if end > self._key_buffer.shape[-2]:
            self._reserve(self.keys, self.values, end)
        self._key_buffer[:, :, start:end] = key_states
        self._value_buffer[:, :, start:end] = value_states
        self.keys, self.values = self._key_buffer[:, :, :end], self._value_buffer[:, :, :end]
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Copy row ``beam_idx[i]`` to row i; if no row is added, only rows that move are copied."""
        rows = beam_idx.numel()
        if rows > self.keys.shape[0]:
            self._reserve(self.keys[beam_idx], self.values[beam_idx], self.keys.shape[-2])
            return
        moved = (beam_idx != torch.arange(rows, device=beam_idx.device)).nonzero().squeeze(1)
        origin = beam_idx[moved]
        self.keys[moved], self.values[moved] = self.keys[origin], self.values[origin]
        self.keys, self.values = self.keys[:rows], self.values[:rows]
        self._key_buffer, self._value_buffer = self._key_buffer[:rows], self._value_buffer[:rows]

    @classmethod
    def join(cls, layers: "Sequence[InPlaceLayer]", rows: Sequence[Tensor]) -> "InPlaceLayer":
        """Rows ``rows[i]`` of each ``layers[i]``, one below the other, aligned on the right; shorter rows are filled
        with 0.
        """
        joined = cls()
        keys = [layer.keys[index] for layer, index in zip(layers, rows, strict=True)]
        values = [layer.values[index] for layer, index in zip(layers, rows, strict=True)]
        joined.update(_stack(keys), _stack(values))
        return joined

    def _reserve(self, keys: Tensor, values: Tensor, tokens: int) -> None:
        """Move keys and values into new buffers with room for ``tokens`` and some more tokens."""
        self._key_buffer, self._value_buffer = (_with_room(states, tokens + SPARE_COLUMNS) for states in (keys, values))
        length = keys.shape[-2]
        self.keys, self.values = self._key_buffer[:, :, :length], self._value_buffer[:, :, :length]


def _with_room(states: Tensor, columns: int) -> Tensor:
    rows, heads, length, size = states.shape
    buffer = states.new_empty(rows, heads, columns, size)
    buffer[:, :, :length] = states
    return buffer


def _stack(states: Sequence[Tensor]) -> Tensor:
    columns = max(each.shape[-2] for each in states)
    return torch.cat([pad(each, (0, 0, columns - each.shape[-2], 0)) for each in states])


def make_cache(config: PreTrainedConfig) -> DynamicCache:
    """An empty cache for a model; layers without full attention (such as a sliding window) are transformers' own."""
    cache = DynamicCache(config=config)
    cache.layers = [InPlaceLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def join_caches(caches: Sequence[DynamicCache], rows: Sequence[Tensor]) -> DynamicCache:
    """One cache with rows ``rows[i]`` of each ``caches[i]``; several caches must hold full attention only."""
    joined = caches[0]
    if len(caches) == 1:
        select_rows(joined, rows[0])
        return joined
    for number, layers in enumerate(zip(*(cache.layers for cache in caches), strict=True)):
        joined.layers[number] = InPlaceLayer.join(cast(Sequence[InPlaceLayer], layers), rows)
    return joined


def select_rows(cache: DynamicCache, rows: Tensor) -> None:
    """Copy row ``rows[i]`` to row i of the cache; a row may be repeated or dropped."""
    cache.reorder_cache(cast(LongTensor, rows))


def has_only_full_attention(config: PreTrainedConfig) -> bool:
    """Whether every layer attends to all earlier tokens."""
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers)
