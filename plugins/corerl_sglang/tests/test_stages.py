"""Calls to the stages of a pipeline, amid its batches, by threads in place of stages."""

import queue
import threading
from collections.abc import Callable

import pytest

from corerl_sglang_engine.stages import StagedCalls

ROUNDS = 40
BATCHES = range(5, 30)
"""rounds in which a batch is begun"""


class Ring:
    """SGLang's ``event_loop_pp``: its messages between the stages, in their order.

    Args:
        rank_of: the rank by which a stage chooses its rounds.

    Attributes:
        answered: rounds in which each stage answered.
    """

    def __init__(self, stages: int, calls: set[int], rank_of: Callable[[int], int], patience: float) -> None:
        self.stages, self.calls, self.patience = stages, calls, patience
        self.requests, self.proxies, self.outputs = ([queue.SimpleQueue() for _ in range(stages)] for _ in range(3))
        self.together = threading.Barrier(stages)
        self.answered: list[list[int]] = [[] for _ in range(stages)]
        self.failed: list[str] = []
        self.staged = [StagedCalls(rank_of(rank), stages) for rank in range(stages)]

    def run(self) -> None:
        threads = [threading.Thread(target=self._guarded, args=(rank,)) for rank in range(self.stages)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    def _guarded(self, rank: int) -> None:
        try:
            self._loop(rank)
        except (queue.Empty, threading.BrokenBarrierError) as error:
            self.failed.append(f"stage {rank}: {type(error).__name__}")

    def _loop(self, rank: int) -> None:
        staged, is_last, following = self.staged[rank], rank == self.stages - 1, (rank + 1) % self.stages
        passed_on: int | None = None
        for number in range(ROUNDS):
            came = [number] if rank == 0 and number in self.calls else []
            came = came if rank == 0 else self.requests[rank].get(timeout=self.patience)
            for each in came:
                staged.add(each)
            if not is_last:
                self.requests[following].put(came)
            for _ in staged.due():
                self.together.wait(self.patience)  # all_gather_object
                self.answered[rank].append(number)
            begins = number in BATCHES
            if begins and rank:
                assert self.proxies[rank].get(timeout=self.patience) == number
            if is_last and begins:
                self.outputs[0].put(number)
            elif not is_last and passed_on is not None:
                self.outputs[following].put(passed_on)
            passed_on = None
            if number + 1 - self.stages in BATCHES:
                passed_on = self.outputs[rank].get(timeout=self.patience)
                assert passed_on == number + 1 - self.stages
            if begins and not is_last:
                self.proxies[following].put(number)


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
def test_calls_amid_batches_are_answered_by_all_stages(stages: int) -> None:
    calls = {2, 5, 6, 11, 17, 29, 31}
    ring = Ring(stages, calls, rank_of=lambda rank: rank, patience=60)
    ring.run()
    assert not ring.failed
    for rank, answered in enumerate(ring.answered):
        assert answered == [call + stages - 1 - rank for call in sorted(calls)]


def test_stages_that_answer_in_the_round_of_a_call_stop_each_other_amid_batches_alone() -> None:
    for calls, stops, patience in (({2}, False, 60), ({11}, True, 0.5)):
        ring = Ring(2, calls, rank_of=lambda rank: 1, patience=patience)
        ring.run()
        assert bool(ring.failed) is stops
