"""Requests that need one token each in consecutive steps, and nothing else but blocks of the KV cache."""

from corerl_vllm_engine.responses import Response


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
        self._firsts: list[list[int]] = [[] for _ in range(size)]
        """for each number of steps after the first one, the requests whose token is then the first of a block"""
        self._turns: list[list[int]] = [[] for _ in range(size)]
        """likewise those whose turn it is"""
        for number, (response, computed) in enumerate(zip(responses, self.computed, strict=True)):
            self._firsts[-computed % size].append(number)
            self._turns[(response.turn - computed) % size].append(number)

    def advance(self) -> None:
        """To the next step."""
        self.room -= 1
        self._steps += 1
        self.computed = [count + 1 for count in self.computed]  # the last step keeps its own
        self.outputs = [count + 1 for count in self.outputs]

    def firsts(self) -> list[int]:
        """Numbers of the requests whose token is the first of a block, in order."""
        return self._firsts[self._steps % self._size]

    def turns(self) -> list[int]:
        """Numbers of the requests that ask for their next block in this step, in order: each once in a block, at
        another place in it.
        """
        return self._turns[self._steps % self._size]
