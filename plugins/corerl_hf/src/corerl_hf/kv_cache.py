"""A KV cache written in place, whose rows can be repeated, reordered and dropped."""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

SPARE_COLUMNS = 64
"""room for so many tokens is added whenever a layer is full"""


class InPlaceLayer(DynamicLayer):
    """Full attention: what transformers' ``DynamicLayer`` holds, without copying all of it for every token.

    ``keys`` and ``values`` are views (rows, heads, tokens so far, head size) of larger buffers.
    """

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
        """Row i becomes what row ``beam_idx[i]`` was. Rows that stay where they are cost nothing, unless rows are added."""
        rows = beam_idx.numel()
        if rows > self.keys.shape[0]:
            self._reserve(self.keys[beam_idx], self.values[beam_idx], self.keys.shape[-2])
            return
        moved = (beam_idx != torch.arange(rows, device=beam_idx.device)).nonzero().squeeze(1)
        origin = beam_idx[moved]
        self.keys[moved], self.values[moved] = self.keys[origin], self.values[origin]
        self.keys, self.values = self.keys[:rows], self.values[:rows]
        self._key_buffer, self._value_buffer = self._key_buffer[:rows], self._value_buffer[:rows]

    def _reserve(self, keys: Tensor, values: Tensor, tokens: int) -> None:
        """Move keys and values into new buffers with room for ``tokens`` and some more."""
        self._key_buffer, self._value_buffer = (_with_room(states, tokens + SPARE_COLUMNS) for states in (keys, values))
        length = keys.shape[-2]
        self.keys, self.values = self._key_buffer[:, :, :length], self._value_buffer[:, :, :length]


def _with_room(states: Tensor, columns: int) -> Tensor:
    rows, heads, length, size = states.shape
    buffer = states.new_empty(rows, heads, columns, size)
    buffer[:, :, :length] = states
    return buffer


def make_cache(config: PreTrainedConfig) -> DynamicCache:
    """An empty cache for a model; layers other than full attention (sliding window, recurrent) are transformers' own."""
    cache = DynamicCache(config=config)
    cache.layers = [InPlaceLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def has_only_full_attention(config: PreTrainedConfig) -> bool:
    """Whether every layer attends to all earlier tokens."""
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers)
