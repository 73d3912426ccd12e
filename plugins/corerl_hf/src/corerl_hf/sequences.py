"""The sequences of one batch on the device: KV cache, padding mask and positions."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from corerl_hf.kv_cache import has_only_full_attention, join_caches, make_cache, select_rows
from corerl_torch.routers import Routers


class Sequences:
    """Rows that grow by one token at a time.

    Prompts are padded on the left, so the next token of every row is in the same column.

    Args:
        model: a transformers causal language model.
        prompts: token ids of each distinct prompt, shorter ones first.
        prompt_of_row: index into ``prompts`` for each row, in ascending order.
        max_new_tokens: largest number of appended tokens.
        max_prefill_tokens: prompt tokens computed at a time.
        routers: those of the model that record their choices; None: none does.

    Attributes:
        logits: (rows, vocabulary) of each row's first new token.
        prompt_experts: the routers' choices for each distinct prompt, (tokens, layers, top_k).
        step_experts: those of each step, (rows, layers, top_k).
    """

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        prompt_of_row: Sequence[int],
        *,
        max_new_tokens: int,
        max_prefill_tokens: int,
        routers: Routers | None = None,
    ) -> None:
        self._model, self._routers = model, routers
        self.prompt_experts: list[Tensor] = []
        self.step_experts: list[Tensor] = []
        self._only_full_attention = has_only_full_attention(model.config)
        caches, logits, rows = [], [], []
        for group in self._groups([len(prompt) for prompt in prompts], max_prefill_tokens):
            cache, group_logits = self._prefill([prompts[number] for number in group], max_prefill_tokens)
            index = [number - group.start for number in prompt_of_row if number in group]
            rows.append(torch.tensor(index, device=model.device))
            caches.append(cache)
            logits.append(group_logits[rows[-1]])
        self.logits = torch.cat(logits)
        self._cache = join_caches(caches, rows)
        lengths = torch.tensor([len(prompts[number]) for number in prompt_of_row])
        self._positions = lengths.to(model.device)[:, None]
        self._columns = int(lengths.max())
        self._mask: Tensor | None = None
        if int(lengths.min()) < self._columns:
            columns = torch.arange(self._columns + max_new_tokens)
            self._mask = self._step_mask(columns >= self._columns - lengths[:, None]).to(model.device)

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token, (rows,), to each row; returns (rows, vocabulary) logits of the next token."""
        self._columns += 1
        mask = None if self._mask is None else self._mask[..., : self._columns]
        logits = _forward(self._model, self._cache, tokens[:, None], self._positions, mask)
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

    def _prefill(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> tuple[DynamicCache, Tensor]:
        """Compute some prompts, with as many columns at a time as ``max_tokens`` allows."""
        device = self._model.device
        columns = max(map(len, prompts))
        ids = torch.tensor([[0] * (columns - len(prompt)) + list(prompt) for prompt in prompts], device=device)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        positions = torch.arange(columns, device=device) - (columns - lengths)[:, None]
        padded = min(map(len, prompts)) < columns
        cache = make_cache(self._model.config)
        width = max(1, max_tokens // len(prompts))
        experts: list[Tensor] = []
        for start in range(0, columns, width):
            end = min(start + width, columns)
            mask = positions[:, :end] >= 0 if padded else None
            chunk = slice(start, end)
            logits = _forward(self._model, cache, ids[:, chunk], positions[:, chunk].clamp(min=0), mask)
            if self._routers:
                taken = self._routers.taken()
                experts.append(taken.view(len(prompts), end - start, *taken.shape[1:]))
        if experts:
            whole = torch.cat(experts, dim=1)
            self.prompt_experts += [row[-len(prompt) :] for row, prompt in zip(whole, prompts, strict=True)]
        return cache, logits

    def _step_mask(self, mask: Tensor) -> Tensor:
        """Convert ``mask`` (rows, columns), true on tokens, to its form for single steps.

        A bias (rows, 1, 1, columns) on the attention scores: transformers then need not make one for each token. The
        mask is kept if the model uses it for more (positions, a sliding window) or its kernel accepts no bias.
        """
        config = self._model.config
        rotary = getattr(config, "rope_parameters", None) is not None and not getattr(config, "alibi", False)
        if not (rotary and self._only_full_attention and config._attn_implementation in ("sdpa", "eager")):
            return mask
        bias = torch.zeros(mask.shape, dtype=self._model.dtype)
        return bias.masked_fill_(~mask, torch.finfo(bias.dtype).min)[:, None, None, :]


def _forward(model: Any, cache: DynamicCache, ids: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
    """(rows, vocabulary) logits after the last column of ``ids``."""
    output = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    logits: Tensor = output.logits[:, -1]
    return logits
