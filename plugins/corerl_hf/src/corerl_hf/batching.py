"""Division of responses into batches that are decoded together."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from corerl.contracts.rollout_backends import GenerationRequest
from corerl.contracts.token_columns import TokenValues
from corerl_torch.media import Image, images_of
from corerl_torch.media_store import COLUMN


class Row(NamedTuple):
    """One response: sample number ``sample`` of ``request``, the ``number``-th request of the call."""

    number: int
    sample: int
    request: GenerationRequest

    @property
    def prompt(self) -> "Prompt":
        return prompt_of(self.request)


class Prompt(NamedTuple):
    """The token ids of a prompt, and its images."""

    token_ids: tuple[int, ...]
    images: tuple[Image, ...]


def prompt_of(request: GenerationRequest) -> Prompt:
    """The prompt of a request; equal prompts are equal."""
    images = request.media.get(COLUMN)
    return Prompt(tuple(request.prompt_ids), images_of(images) if isinstance(images, TokenValues) else ())


def plan_batches(requests: Sequence[GenerationRequest], max_batch_size: int) -> list[list[Row]]:
    """The rows of all requests in batches of nearly equal size, at most ``max_batch_size``.

    A batch has one adapter, so that the bits of a row depend on rows of the same adapter alone. Shorter prompts are
    first, which keeps padding small, and equal prompts are adjacent: a prompt is computed once in a batch.
    """
    batches = []
    for adapter in sorted({request.adapter for request in requests}):
        batches += _batches(requests, [i for i, each in enumerate(requests) if each.adapter == adapter], max_batch_size)
    return batches


def _batches(requests: Sequence[GenerationRequest], numbers: Sequence[int], max_batch_size: int) -> list[list[Row]]:
    prompts = {number: prompt_of(requests[number]) for number in numbers}
    order = sorted(numbers, key=lambda index: (len(prompts[index].token_ids), prompts[index]))
    rows = [Row(index, sample, requests[index]) for index in order for sample in range(requests[index].sampling.n)]
    batches = -(-len(rows) // max_batch_size)
    edges = [len(rows) * batch // batches for batch in range(batches + 1)] if batches else []
    return [rows[start:end] for start, end in itertools.pairwise(edges)]
