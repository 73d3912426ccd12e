"""A group: one prompt and its responses."""

from collections.abc import Callable
from dataclasses import dataclass

from corerl.contracts.rollout_backends import SamplingParams
from corerl.data.prompts import Prompt


@dataclass
class Group:
    """A prompt and how its responses are sampled.

    Attributes:
        seed: of the group; each response has a seed of its own, from this one and its number.
        name: unique in the run, for the ids of requests.
        batch: the name of the groups that are scored together by a reward manager of whole batches.
        place: in that batch.
        on_begin: called just before its first request is sent.
        generated: when its last response was complete, on the clock of ``time.perf_counter``.
    """

    prompt: Prompt
    seed: int
    sampling: SamplingParams
    name: str
    batch: str
    place: int
    on_begin: Callable[[], None] = lambda: None
    generated: float = 0.0
