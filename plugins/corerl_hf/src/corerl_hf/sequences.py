"""The sequences of one batch on the device: KV cache, padding mask and positions."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from corerl_hf.batching import Prompt
from corerl_hf.kv_cache import has_only_full_attention, join_caches, make_cache, select_rows
from corerl_torch.media import ImageInputs
from corerl_torch.routers import Routers


class Sequences:
    """Rows that grow by one token at a time.

    Prompts are padded on the left, so the next token of every row is in the same column.

    Args:
        model: a transformers causal language model.
        prompts: the distinct prompts, shorter ones first.
        prompt_of_row: index into ``prompts`` for each row, in ascending order.
        max_new_tokens: largest number of appended tokens.
        max_prefill_tokens: prompt tokens computed at a time.
        routers: those of the model that record their choices; None: none does.
        images: of a model that reads images, or None.

    Attributes:
        logits: (rows, vocabulary) of each row's first new token.
        prompt_experts: the routers' choices for each distinct prompt, (tokens, layers, top_k).
        step_experts: those of each step, (rows, layers, top_k).
    """

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Prompt],
        prompt_of_row: Sequence[int],
        *,
        max_new_tokens: int,
        max_prefill_tokens: int,
        routers: Routers | None = None,
        images: ImageInputs | None = None,
    ) -> None:
        self._model, self._routers, self._images = model, routers, images
        self.prompt_experts: list[Tensor] = []
        self.step_experts: list[Tensor] = []
        self._only_full_attention = has_only_full_attention(model.config)
        caches, logits, rows, ends = [], [], [], []
        for group in self._groups([len(prompt.token_ids) for prompt in prompts], max_prefill_tokens):
            cache, group_logits, end = self._prefill([prompts[number] for number in group], max_prefill_tokens)
            index = [number - group.start for number in prompt_of_row if number in group]
            rows.append(torch.tensor(index, device=model.device))
            caches.append(cache)
            logits.append(group_logits[rows[-1]])
            ends.append(end[rows[-1]])
        self.logits = torch.cat(logits)
        self._cache = join_caches(caches, rows)
        lengths = torch.tensor([len(prompts[number].token_ids) for number in prompt_of_row])
        self._positions = torch.cat(ends)[:, None]
        self._columns = int(lengths.max())
        self._mask: Tensor | None = None
        if int(lengths.min()) < self._columns:
            columns = torch.arange(self._columns + max_new_tokens)
            self._mask = self._step_mask(columns >= self._columns - lengths[:, None]).to(model.device)

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token, (rows,), to each row; returns (rows, vocabulary) logits of the next token."""
        self._columns += 1
        mask = None if self._mask is None else self._mask[..., : self._columns]
        with self._reading((), tokens[:, None]) as others:
            logits = _forward(self._model, self._cache, tokens[:, None], self._positions, mask, others)
        self._positions += 1
        if self._routers:
            self.step_experts.append(self._routers.taken())
        return logits

    def select(self, rows: Tensor) -> None:
        """Copy row ``rows[i]`` to row i."""
        select_rows(self._cache, rows)
        self._positions = self._positions[rows]
        if self._mask is not None:
            self._mask = self._mask[rows]

    def _groups(self, lengths: Sequence[int], max_tokens: int) -> list[range]:
        """Ranges of prompts that are computed together: neighbours, to keep padding small."""
        if not self._only_full_attention:
            return [range(len(lengths))]  # caches of other layers cannot be joined
        starts = [0]
        for number, length in enumerate(lengths):
            if (number + 1 - starts[-1]) * length > max_tokens and number > starts[-1]:
                starts.append(number)
        return [range(start, end) for start, end in zip(starts, [*starts[1:], len(lengths)], strict=True)]

    def _prefill(self, prompts: Sequence[Prompt], max_tokens: int) -> tuple[DynamicCache, Tensor, Tensor]:
        """Compute some prompts, with as many columns at a time as ``max_tokens`` allows; all at once with images.

        Returns:
            (cache, logits, (prompts,) positions of the first new tokens).
        """
        device = self._model.device
        all_ids = [prompt.token_ids for prompt in prompts]
        columns = max(map(len, all_ids))
        ids = torch.tensor([[0] * (columns - len(each)) + list(each) for each in all_ids], device=device)
        lengths = torch.tensor(list(map(len, all_ids)), device=device)
        real = torch.arange(columns, device=device) >= (columns - lengths)[:, None]
        positions, ends = self._positions_of(prompts, ids, real)
        padded = min(map(len, all_ids)) < columns
        cache = make_cache(self._model.config)
        with_images = any(prompt.images for prompt in prompts)
        width = columns if with_images else max(1, max_tokens // len(prompts))
        experts: list[Tensor] = []
        for start in range(0, columns, width):
            end = min(start + width, columns)
            mask = real[:, :end] if padded else None
            chunk = slice(start, end)
            with self._reading(prompts if with_images else (), ids[:, chunk]) as images:
                logits = _forward(self._model, cache, ids[:, chunk], positions[..., chunk], mask, images)
            if self._routers:
                taken = self._routers.taken()
                experts.append(taken.view(len(prompts), end - start, *taken.shape[1:]))
        if experts:
            whole = torch.cat(experts, dim=1)
            self.prompt_experts += [row[-len(each) :] for row, each in zip(whole, all_ids, strict=True)]
        return cache, logits, ends

    def _positions_of(self, prompts: Sequence[Prompt], ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """The positions of left-padded prompts, 0 in padding, and those of the tokens behind them.

        Positions are (prompts, columns), or (3, prompts, columns) if they depend on images.
        """
        steps = real.long().cumsum(dim=1) - 1
        if self._images is None or not self._images.has_own_positions or not any(each.images for each in prompts):
            return steps.clamp(min=0), steps[:, -1] + 1
        lengths = [len(each.token_ids) for each in prompts]
        right = torch.tensor([list(each.token_ids) + [0] * (ids.shape[1] - len(each.token_ids)) for each in prompts])
        found = self._images.positions(right.to(ids.device), lengths, [each.images for each in prompts])
        padding = [ids.shape[1] - length for length in lengths]
        rolled = torch.stack([found[:, row].roll(count, dims=1) for row, count in enumerate(padding)], dim=1)
        return rolled, rolled.amax(dim=(0, 2)) + 1

    def _reading(self, prompts: Sequence[Prompt], ids: Tensor) -> AbstractContextManager[dict[str, Any]]:
        """Further inputs of the model for these left-padded prompts; (): for tokens behind the prompts."""
        if self._images is None:
            return contextlib.nullcontext({})
        columns = ids.shape[1]
        placed = [
            (image, row * columns + columns - len(prompt.token_ids) + image.places())
            for row, prompt in enumerate(prompts)
            for image in prompt.images
        ]
        return self._images.reading(ids.shape, placed, typed=bool(placed))

    def _step_mask(self, mask: Tensor) -> Tensor:
        """Convert ``mask`` (rows, columns), true on tokens, to its form for single steps.

        A bias (rows, 1, 1, columns) on the attention scores: transformers then need not make one for each token. The
        mask is kept if the model uses it for more (positions, a sliding window) or its kernel accepts no bias.
        """
        config = self._model.config.get_text_config()
        rotary = getattr(config, "rope_parameters", None) is not None and not getattr(config, "alibi", False)
        if not (rotary and self._only_full_attention and config._attn_implementation in ("sdpa", "eager")):
            return mask
        bias = torch.zeros(mask.shape, dtype=self._model.dtype)
        return bias.masked_fill_(~mask, torch.finfo(bias.dtype).min)[:, None, None, :]


def _forward(
    model: Any, cache: DynamicCache, ids: Tensor, positions: Tensor, mask: Tensor | None, images: Mapping[str, Any]
) -> Tensor:
    """(rows, vocabulary) logits after the last column of ``ids``."""
    output = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        use_cache=True,
        logits_to_keep=1,
        **{_cache_argument(type(model).forward): cache},
        **images,
    )
    logits: Tensor = output.logits[:, -1]
    return logits


@functools.cache
def _cache_argument(forward: Callable[..., Any]) -> str:
    """The name of the cache in a model's ``forward``: transformers 5.24 renamed ``past_key_values``."""
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"
