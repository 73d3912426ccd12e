"""Which responses are decoded together."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from corerl.registry.rollout_backends import GenerationRequest


class Row(NamedTuple):
    """One response: sample number ``sample`` of ``request``, the ``index``-th of the call."""

    index: int
    sample: int
    request: GenerationRequest


def plan_batches(requests: Sequence[GenerationRequest], max_batch_size: int) -> list[list[Row]]:
    """The rows of all requests in batches of nearly one size, at most ``max_batch_size``.

    Prompts of one length stand together, which keeps padding small, and so do the samples of one prompt, which is
    then computed once in a batch.
    """
    order = sorted(range(len(requests)), key=lambda index: len(requests[index].prompt_ids))
    rows = [Row(index, sample, requests[index]) for index in order for sample in range(requests[index].sampling.n)]
    batches = -(-len(rows) // max_batch_size)
    edges = [len(rows) * batch // batches for batch in range(batches + 1)] if batches else []
    return [rows[start:end] for start, end in itertools.pairwise(edges)]
