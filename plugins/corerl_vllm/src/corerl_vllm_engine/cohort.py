"""Requests that need one token each in consecutive steps, and nothing else but memory at the ends of their blocks."""

from corerl_vllm_engine.responses import Response

SETTLED = 2
"""tokens at the start of a block for which the manager is asked: it may learn the last token of a block a step late"""


def is_at_end(place: int, size: int) -> bool:
    """Whether a token in this place of a block may need memory, or let other requests share a block."""
    return place < SETTLED or place == size - 1


class Cohort:
    """The requests of a step, and of all steps after it until one of them ends.

    Attributes:
        responses: in the scheduler's order; ``requests`` and ``names`` likewise.
        computed: tokens of each request that are computed before the step.
        outputs: output tokens of each request with the one that the step computes.
        room: number of further steps in which no request reaches its longest response.

    Args:
        size: tokens of a block.
    """

    def __init__(self, responses: list[Response], outputs: list[int], size: int) -> None:
        self.responses, self.outputs, self._size, self._steps = responses, outputs, size, 0
        self.requests = [response.request for response in responses]
        self.names: list[str] = [request.request_id for request in self.requests]
        self.computed: list[int] = [request.num_computed_tokens for request in self.requests]
        self.room = min(response.longest - output for response, output in zip(responses, outputs, strict=True)) - 1
        self._places: list[list[int]] = [[] for _ in range(size)]
        """for each place in a block, the requests whose token of the first step is there"""
        for number, computed in enumerate(self.computed):
            self._places[computed % size].append(number)

    def advance(self) -> None:
        """To the next step."""
        self.room -= 1
        self._steps += 1
        self.computed = [count + 1 for count in self.computed]  # the last step keeps its own
        self.outputs = [count + 1 for count in self.outputs]

    def full(self) -> int:
        """Number of requests that need a block in this step."""
        return len(self._at(0))

    def at_ends(self) -> list[int]:
        """Numbers of the requests whose token is at an end of its block, in order."""
        ends = [self._at(place) for place in range(self._size) if is_at_end(place, self._size)]
        return sorted(number for numbers in ends for number in numbers)

    def _at(self, place: int) -> list[int]:
        return self._places[(place - self._steps) % self._size]
