"""What the checks of reward managers do beside catching the planted faults."""

import functools
import multiprocessing
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from planted.reward_managers.right import Right, Whole

from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl.contracts.scorers import Scorer
from corerl.registry.base import Entry, Owner, Selected
from corerl_testing import reward_managers
from corerl_testing.results import CheckSkipped


class Shifted(Whole):
    """Subtracts a penalty, as overlong shaping does."""

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        results = super().score(requests)
        return [each if each.score is None else replace(each, score=each.score - 0.5) for each in results]


class Length(Whole):
    """Does not listen to the scorers."""

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        return [RewardResult(-float(request.response_length)) for request in requests]


def run(manager: Any, name: str) -> None:
    """In this process."""
    dict(reward_managers.checks(Selected(Entry("reward manager", "m", manager, Owner("tests")))))[name]()


NAMES = [name for name, _ in reward_managers.checks(Selected(Entry("reward manager", "m", Right, Owner("tests"))))]
PARTS = (
    "parts_are_scored_alike",
    "num_workers_at_a_time_over_parts",
    "a_part_that_hangs_holds_up_no_other",
    "one_alone",
)


def test_a_manager_that_shifts_scores_passes(failures: Any) -> None:
    assert failures("reward_managers", Shifted) == {}


@pytest.mark.parametrize("name", PARTS)
def test_parts_are_for_managers_that_take_them(name: str) -> None:
    with pytest.raises(CheckSkipped, match=r"it has no submit\(\)"):
        run(Whole, name)


@pytest.mark.parametrize("name", [name for name in NAMES if name != PARTS[0]])
def test_a_manager_that_does_not_listen_to_the_scorers_passes_over_their_checks(name: str) -> None:
    if NAMES.index(name) < NAMES.index("order_of_slow_scorers"):
        run(Length, name)
    else:
        with pytest.raises(CheckSkipped, match="do not depend on the scorers"):
            run(Length, name)


class Processes(Whole):
    """Scores in other processes: scorers, requests and results are pickled."""

    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        self.pool = ProcessPoolExecutor(num_workers, mp_context=multiprocessing.get_context("fork"))
        self.scorers = dict(scorers)

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        return list(self.pool.map(functools.partial(score_inline, self.scorers), requests))

    def close(self) -> None:
        self.pool.shutdown()


def score_inline(scorers: Mapping[str, Scorer], request: RewardRequest) -> RewardResult:
    return Right(scorers, num_workers=1, timeout=1.0).one(request)


@pytest.mark.parametrize(
    "name",
    [
        "order_of_slow_scorers",
        "exceptions_are_errors",
        "num_workers_at_a_time",
        "close_gives_back_threads_and_processes",
    ],
)
def test_a_manager_with_processes_passes(name: str) -> None:
    run(Processes, name)


class LeavesProcesses(Processes):
    def close(self) -> None:
        kept.append(self.pool)


kept: list[ProcessPoolExecutor] = []


def test_a_manager_that_leaves_processes_is_caught(outcomes: Any) -> None:
    name = "close_gives_back_threads_and_processes"
    result = outcomes("reward_managers", LeavesProcesses, only=name)[name]
    assert result.status == "failed"
    assert "processes" in result.reason


def test_the_checks_import_no_torch() -> None:
    program = (
        "import sys, corerl_testing.reward_managers, corerl_testing.scorers, corerl_testing.environments; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
