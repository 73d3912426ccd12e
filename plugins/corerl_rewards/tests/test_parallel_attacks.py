"""Scorers that do their worst end at most their own call."""

import os
import resource
import time

import pytest

from corerl_rewards.isolation import pool
from corerl_rewards.parallel import ParallelRewardManager
from plugins.corerl_rewards.tests.managers import manager, requests


@pytest.mark.parametrize(
    ("attack", "kind", "words"),
    [
        ("loop", "timeout", "ran past reward.timeout (1.5 s)"),
        ("hold", "timeout", "ran past reward.timeout (1.5 s)"),
        ("sleep", "timeout", "ran past reward.timeout (1.5 s)"),
        ("allocate", "memory", "raised MemoryError"),
        ("grow", "memory", "raised MemoryError"),
        ("crash", "crash", "ended its process (SIGSEGV)"),
        ("abort", "crash", "ended its process (SIGABRT)"),
        ("kill", "crash", "ended its process (SIGKILL)"),
        ("os._exit", "crash", "ended its process (exit code 0)"),
        ("close", "crash", "ended its process"),
        ("backtrack", "timeout", "waiting for a processor or the disk does not count"),
        ("stop", "crash", "was stopped"),
        ("forge", "crash", "wrote into the connection of its process"),
        ("forge without end", "crash", "wrote into the connection of its process"),
        ("sys.exit", "exception", "raised SystemExit: 3"),
        ("recurse", "exception", "raised RecursionError"),
        ("not a number", "exception", "raised ValueError"),
    ],
)
def test_an_attack_ends_at_most_its_own_call(
    quick: ParallelRewardManager, patient: ParallelRewardManager, attack: str, kind: str, words: str
) -> None:
    chosen = quick if kind == "timeout" or attack == "stop" else patient
    results = chosen.score(requests("1", "2", attack, "3", "4", "5"))
    assert [result.score for result in results] == [1.0, 2.0, None, 3.0, 4.0, 5.0]
    assert results[2].error_kind == kind
    assert words in str(results[2].error)


@pytest.mark.parametrize("nuisance", ["print", "fork", "interrupt", "print low", "child"])
def test_a_nuisance_is_none(patient: ParallelRewardManager, nuisance: str) -> None:
    results = patient.score(requests("1", nuisance, "3", nuisance, "5"))
    assert [result.score for result in results] == [1.0, 1.0, 3.0, 1.0, 5.0]


def test_many_attacks_at_once_cost_one_deadline() -> None:
    hostile = manager(num_workers=2, timeout=2.0, patience=0.2)
    try:
        hostile.score(requests("1"))
        start = time.monotonic()
        results = hostile.score(requests(*["sleep", "1", "2", "3"] * 10))
        took = time.monotonic() - start
    finally:
        hostile.close()
    assert [result.score for result in results] == [None, 1.0, 2.0, 3.0] * 10
    assert {result.error_kind for result in results[::4]} == {"timeout"}
    assert took < 15.0  # two at a time, one after the other, would be 10 deadlines of 2 s


@pytest.mark.parametrize("attack", ["kill parent", "stop parent"])
def test_a_call_that_ends_or_stops_the_nursery_again_and_again_spoils_no_other(
    attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "ANSWER_SECONDS", 1.0)
    parallel = manager(num_workers=3, timeout=20.0)
    batch = [*map(str, range(100)), *["os._exit"] * 8]
    for position in (3, 40, 41, 90):
        batch[position] = attack
    try:
        results = parallel.submit(requests(*batch)).result(90)
    finally:
        parallel.close()
    own = [(each, result.score) for each, result in zip(batch, results, strict=True) if each.isdecimal()]
    assert [(each, score) for each, score in own if score != float(each)] == []
    assert {result.error_kind for each, result in zip(batch, results, strict=True) if each == attack} <= {"crash", None}


def test_limits_and_priority_that_a_call_gives_the_nursery_reach_no_worker() -> None:
    parallel = manager(num_workers=1, timeout=20.0)
    try:
        parallel.score(requests("limit parent"))
        for _ in range(4):  # with those that stood ready: what takes their place is forked under these limits
            parallel.score(requests("os._exit"))
        after = parallel.score(requests("x", source="whereabouts"))[0].components
    finally:
        parallel.close()
    assert after["niceness"] == os.getpriority(os.PRIO_PROCESS, 0)
    assert after["file_size"] == resource.getrlimit(resource.RLIMIT_FSIZE)[0]


@pytest.mark.parametrize("attack", ["forge", "leave a forger", "leave a killer"])
def test_forged_results_and_what_a_call_leaves_behind_change_no_other_result(attack: str) -> None:
    parallel = manager(num_workers=2, timeout=20.0)
    forged = set(range(5, 2000, 100)) if attack == "forge" else {100, 1100}
    try:
        results = parallel.score(requests(*[attack if n in forged else str(n) for n in range(2000)]))
    finally:
        parallel.close()
    assert [results[n].score for n in range(2000) if n not in forged] == [
        float(n) for n in range(2000) if n not in forged
    ]
    if attack == "forge":
        assert {results[n].error_kind for n in forged} == {"crash"}
