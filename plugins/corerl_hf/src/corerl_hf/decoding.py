"""The decode loop: one batch of responses, from prompts to completions."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from corerl.registry.rollout_backends import Completion
from corerl_hf.batching import Row
from corerl_hf.responses import Responses
from corerl_hf.sampling import Sampler, SamplingArrays, row_key, uniforms
from corerl_hf.sequences import Sequences

STEPS_BETWEEN_LOOKS = {"cpu": 1, "cuda": 8}
"""tokens generated before the host looks which rows are finished; on a GPU each look waits for it"""

DROP_SHARE = 1 / 16
"""finished rows leave the batch when they are at least this share of it"""

ATTENTION_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""not cuDNN's: it plans anew, for tens of milliseconds, whenever the number of rows or tokens changes"""


@torch.inference_mode()
def decode(
    model: Any, rows: Sequence[Row], *, max_prefill_tokens: int, aborted: AbstractSet[str], weight_version: int
) -> list[Completion]:
    """Generate the responses of one batch, in the order of ``rows``.

    Args:
        model: a transformers causal language model in evaluation mode.
        max_prefill_tokens: prompt tokens computed at a time.
        aborted: ids of requests that are to end; another thread may add to it, and it is looked at for every token.
        weight_version: written into the completions.

    Raises:
        NonFiniteError: the model gave a logit that is NaN or infinite.
    """
    batch = _Batch(model, rows, aborted)
    with sdpa_kernel(ATTENTION_KERNELS):
        if batch.going():
            logits = batch.prefill(max_prefill_tokens)
            while batch.sample(logits):
                logits = batch.step()
    return batch.responses.completions(weight_version)


class _Batch:
    """R responses on their way; ``_live`` says which of them the rows on the device are."""

    def __init__(self, model: Any, rows: Sequence[Row], aborted: AbstractSet[str]) -> None:
        self._model, self._rows, self._aborted = model, rows, aborted
        self._aborts_seen = 0
        params = [row.request.sampling for row in rows]
        self.responses = Responses(params)
        self._live = np.arange(len(rows))
        self._arrays = SamplingArrays.of(params)
        self._sampler = Sampler(self._arrays, model.device)
        self._keys = np.array(
            [row_key(row.request.sampling.seed, row.request.prompt_ids, row.sample) for row in rows], dtype=np.uint64
        )

    def going(self) -> bool:
        """Whether any row goes on, now that the aborted ones have ended."""
        if len(self._aborted) > self._aborts_seen:
            aborted = set(self._aborted)
            self._aborts_seen = len(aborted)
            self.responses.abort([n for n, row in enumerate(self._rows) if row.request.request_id in aborted])
        return bool(self.responses.going.any())

    def prefill(self, max_tokens: int) -> Tensor:
        """Compute each distinct prompt once; (R, vocabulary) logits of the first tokens."""
        numbers: dict[tuple[int, ...], int] = {}
        prompt_of_row = [numbers.setdefault(tuple(row.request.prompt_ids), len(numbers)) for row in self._rows]
        self._sequences = Sequences(
            self._model,
            list(numbers),
            prompt_of_row,
            max_new_tokens=self.responses.remaining(),
            max_prefill_tokens=max_tokens,
        )
        return self._sequences.logits

    def sample(self, logits: Tensor) -> bool:
        """Draw the next tokens, several on a GPU, and drop rows that are finished; False when none is left."""
        tokens, probs = self._draw(logits, STEPS_BETWEEN_LOOKS[logits.device.type])
        self.responses.add(self._live, torch.stack(tokens).cpu().numpy(), torch.stack(probs).cpu().numpy())
        self._last_tokens = tokens[-1]
        if not self.going():
            return False
        going = self.responses.going[self._live]
        if len(going) - going.sum() >= DROP_SHARE * len(going):
            self._keep(_fill_holes(going))
        return True

    def step(self) -> Tensor:
        """Append the last tokens; (live rows, vocabulary) logits of the next."""
        return self._sequences.step(self._last_tokens)

    def _draw(self, logits: Tensor, steps: int) -> tuple[list[Tensor], list[Tensor]]:
        steps = min(steps, self.responses.remaining())
        numbers = uniforms(self._keys[self._live], self.responses.generated, steps)
        tokens: list[Tensor] = []
        probs: list[Tensor] = []
        for each in torch.from_numpy(numbers).to(logits.device):
            if tokens:
                if len(self._aborted) > self._aborts_seen:
                    break
                logits = self._sequences.step(tokens[-1])
            token, prob = self._sampler(logits, each)
            tokens.append(token)
            probs.append(prob)
        return tokens, probs

    def _keep(self, order: NDArray[np.int64]) -> None:
        self._live = self._live[order]
        index = torch.from_numpy(order).to(self._last_tokens.device)
        self._last_tokens = self._last_tokens[index]
        self._sequences.select(index)
        self._sampler = Sampler(self._arrays.select(self._live), index.device)


def _fill_holes(going: NDArray[np.bool_]) -> NDArray[np.int64]:
    """An order of the rows that go on in which few move: the last ones, into the places of finished ones."""
    count = int(going.sum())
    order = np.arange(count)
    order[~going[:count]] = count + np.flatnonzero(going[count:])
    return order
