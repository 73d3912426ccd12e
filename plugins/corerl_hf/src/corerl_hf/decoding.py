"""The decode loop: one batch of responses, from prompts to completions."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corerl.registry.rollout_backends import Completion
from corerl_hf.batching import Row
from corerl_hf.kv_cache import has_only_full_attention, make_cache
from corerl_hf.responses import Responses
from corerl_hf.sampling import Sampler, SamplingArrays, row_key, uniforms

STEPS_BETWEEN_CHECKS = {"cpu": 1, "cuda": 8}
"""tokens generated before the host looks which rows are finished: each look waits for the GPU"""

DROP_SHARE = 1 / 16
"""finished rows leave the batch when they are at least this share of it"""


class _Sequences:
    """The sequences of one batch on the device: their KV cache, padding mask and positions.

    Prompts are padded on the left, so that the next token of every row goes into one and the same column.
    """

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
        self._model = model
        self._cache = make_cache(model.config)
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        self._columns = int(lengths.max())
        padding = self._columns - lengths
        ids = torch.zeros(len(prompts), self._columns, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, padding[row] :] = torch.as_tensor(prompt, dtype=torch.int64)
        self._prompt_ids = ids.to(model.device)
        self._positions = lengths.to(model.device)[:, None]
        self._mask: Tensor | None = None
        self._bias: Tensor | None = None
        if padding.any():
            self._mask = (torch.arange(self._columns + max_tokens) >= padding[:, None]).to(model.device)

    def prefill(self, max_tokens: int) -> Tensor:
        """Compute the prompts, ``max_tokens`` of them at a time; (rows, vocabulary) logits of the first new token."""
        rows, columns = self._prompt_ids.shape
        width = max(1, max_tokens // rows)
        positions = self._positions - columns + torch.arange(columns, device=self._positions.device)
        for start in range(0, columns, width):
            chunk = slice(start, min(start + width, columns))
            logits = self._forward(
                self._prompt_ids[:, chunk],
                positions[:, chunk].clamp(min=0),
                None if self._mask is None else self._mask[:, : chunk.stop],
            )
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to each row; (rows, vocabulary) logits of the next."""
        self._columns += 1
        mask = self._mask if self._bias is None else self._bias
        logits = self._forward(tokens[:, None], self._positions, None if mask is None else mask[..., : self._columns])
        self._positions += 1
        return logits

    def select(self, rows: Tensor) -> None:
        """Row i becomes what row ``rows[i]`` was; a row may be repeated or left out."""
        self._cache.reorder_cache(rows)
        self._positions = self._positions[rows]
        if self._mask is not None:
            self._mask = self._mask[rows]
            self._bias = self._attention_bias(self._mask)

    def _attention_bias(self, mask: Tensor) -> Tensor | None:
        """(rows, 1, 1, columns) to be added to attention scores, so that transformers need not make it for each token.

        None where the model reads more out of the mask than where padding is (a sliding window, say), or has a kernel
        that takes no bias.
        """
        config = self._model.config
        rotary = getattr(config, "rope_parameters", None) is not None and not getattr(config, "alibi", False)
        if config._attn_implementation not in ("sdpa", "eager") or not rotary or not has_only_full_attention(config):
            return None
        bias = torch.zeros(mask.shape, dtype=self._model.dtype, device=mask.device)
        return bias.masked_fill_(~mask, torch.finfo(bias.dtype).min)[:, None, None, :]

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1]
        return logits


@torch.inference_mode()
def decode(
    model: Any, rows: Sequence[Row], *, max_prefill_tokens: int, aborted: Collection[str], weight_version: int
) -> list[Completion]:
    """Generate the responses of one batch, in the order of ``rows``.

    Args:
        model: a transformers causal language model in evaluation mode.
        max_prefill_tokens: prompt tokens computed at a time.
        aborted: ids of requests that are to end; may grow while this runs, and is looked at before every token.
        weight_version: written into the completions.
    """
    params = [row.request.sampling for row in rows]
    responses = Responses(params)
    arrays = SamplingArrays.of(params)
    keys = np.array([row_key(row.request.sampling.seed, row.request.prompt_ids, row.sample) for row in rows], np.uint64)
    prompts = {tuple(row.request.prompt_ids): number for number, row in enumerate(rows)}
    ...
