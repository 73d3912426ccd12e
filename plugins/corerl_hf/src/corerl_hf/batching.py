"""Division of responses into batches that are decoded together."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from corerl.contracts.rollout_backends import GenerationRequest


class Row(NamedTuple):
    """One response: sample number ``sample`` of ``request``, the ``number``-th request of the call."""

    number: int
    sample: int
    request: GenerationRequest


def plan_batches(requests: Sequence[GenerationRequest], max_batch_size: int) -> list[list[Row]]:
    """The rows of all requests in batches of nearly equal size, at most ``max_batch_size``.

    Shorter prompts are first, which keeps padding small, and equal prompts are adjacent: a prompt is computed once in a
    batch.
    """
    prompts = [tuple(request.prompt_ids) for request in requests]
    order = sorted(range(len(requests)), key=lambda index: (len(prompts[index]), prompts[index]))
    rows = [Row(index, sample, requests[index]) for index in order for sample in range(requests[index].sampling.n)]
    batches = -(-len(rows) // max_batch_size)
    edges = [len(rows) * batch // batches for batch in range(batches + 1)] if batches else []
    return [rows[start:end] for start, end in itertools.pairwise(edges)]
