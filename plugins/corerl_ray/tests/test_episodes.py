"""Workers that play episodes: their requests come to the controller, and a worker that ends is replaced."""

import asyncio
import os
import signal
import time

import pytest
from ray_toys import TALKERS, Answers, Talker, talked, until

from corerl.contracts.runtimes import Role
from corerl.errors import ConfigError, EngineDeadError, RunError, WorkerDiedError
from corerl.rollout.episode_workers import WorkerEpisodes
from corerl_ray.processes import is_alive

pytestmark = pytest.mark.xdist_group("ray")  # whose cluster is started once

chaos = pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="one more lost worker: set CORERL_CHAOS=1")


@pytest.fixture(scope="module")
def talkers(cluster):
    """Two workers, for tests that leave them well, and a listener that starts lost ones again."""
    from corerl.contracts.config import RuntimeConfig
    from corerl_ray.options import RayOptions
    from corerl_ray.runtime import RayRuntime

    runtime = RayRuntime(RuntimeConfig(name="ray"), RayOptions(workers=1))
    group = runtime.spawn(TALKERS, Talker)
    WorkerEpisodes(group, Answers(), 100)
    yield group
    runtime.close()
    assert not any(is_alive(member.facts.pid) for member in group.latest.values())


def pids(group):
    return {member.facts.pid for member in group.members}


def all_of(group, engines, *names):
    async def play():
        return await asyncio.gather(*(talked(group, name, engines) for name in names), return_exceptions=True)

    return asyncio.run(play())


def test_episodes_are_played_by_all_workers_and_their_requests_overlap(talkers):
    engines, names = Answers(0.2), [f"e{number}" for number in range(40)]
    results = all_of(talkers, engines, *(f"ask:{name}" for name in names))
    assert [said for _, said, _ in results] == [[f"{name}.0", f"{name}.1"] for name in names]
    assert {pid for pid, *_ in results} == pids(talkers) and engines.most > 20 and not engines.under_way
    assert all(0.19 < each < 60 for *_, ago in results for each in ago)
    assert talkers.loads.samples == [0, 0] and not talkers.exchange._at


def test_an_error_of_one_episode_is_its_own(talkers):
    before = pids(talkers)
    broken, lost, fine = all_of(talkers, Answers(0.1), "raise:is wrong", "ask:lost", "ask:a")
    assert isinstance(broken, ConfigError) and broken.key == "rollout.agent"
    assert str(broken).endswith("is wrong") and str(broken).startswith("episodes worker ")
    assert isinstance(lost, EngineDeadError) and str(lost).endswith("no engine is left")
    assert fine[1] == ["a.0", "a.1"] and pids(talkers) == before


def test_a_cancelled_episode_ends_its_requests(talkers):
    engines = Answers(600.0)

    async def cancel():
        playing = [asyncio.create_task(talked(talkers, f"ask:{name}", engines)) for name in "abc"]
        while len(engines.under_way) < 3:
            await asyncio.sleep(0.01)
        playing[0].cancel()
        await asyncio.wait(playing[:1])
        while len(engines.under_way) > 2:
            await asyncio.sleep(0.01)
        for each in playing[1:]:
            each.cancel()
        await asyncio.wait(playing)

    asyncio.run(asyncio.wait_for(cancel(), 60))
    assert not engines.under_way
    assert all_of(talkers, Answers(), "ask:d")[0][1] == ["d.0", "d.1"]


def test_the_open_episodes_of_a_lost_worker_are_played_elsewhere_and_it_comes_back(talkers, tmp_path, capsys):
    before = pids(talkers)
    engines = Answers(0.3)
    names = [f"kill-once:{tmp_path}/killed", *(f"ask:{number}" for number in range(8))]
    results = all_of(talkers, engines, *names)
    assert [len(said) for _, said, _ in results] == [2] * 9 and not engines.under_way
    until(lambda: len(talkers.members) == 2)
    assert len(before & pids(talkers)) == 1 and "its episodes are played again" in capsys.readouterr().err
    assert len({pid for pid, *_ in all_of(talkers, Answers(0.2), *(f"ask:{number}" for number in range(4)))}) == 2


@chaos
def test_an_episode_that_ends_two_workers_fails_and_no_other_does(talkers):
    results = all_of(talkers, Answers(), "kill:all", "ask:a")
    assert type(results[0]) is RunError and str(results[0]).startswith("its worker died twice: the episodes worker ")
    until(lambda: len(talkers.members) == 2)


@pytest.fixture
def short(start):
    """Runtimes with talkers whose calls end within a second, and without a second worker if ``workers`` is 1."""

    def started(workers):
        runtime = start()
        role = Role("episodes", "rollout.num_workers", "talker", distributed=True, workers=workers, timeout=1.0)
        group = runtime.spawn(role, Talker)
        WorkerEpisodes(group, Answers(), 1)
        return group

    return started


def test_a_worker_whose_event_loop_is_blocked_is_ended_at_the_deadline(short, tmp_path, capsys):
    group = short(2)
    start = time.monotonic()
    [(pid, said, _)] = all_of(group, Answers(), f"block-once:{tmp_path}/blocked")
    assert len(said) == 2 and 1 < time.monotonic() - start < 60
    until(lambda: len(group.members) == 2)
    assert "did not end a call of play within 1 s" in capsys.readouterr().err
    os.kill(pid, signal.SIGKILL)  # the second loss: one restart is allowed
    results = all_of(group, Answers(0.1), "ask:a", "ask:b")  # one of them waits until nobody starts the worker again
    assert [said for _, said, _ in results] == [["a.0", "a.1"], ["b.0", "b.1"]] and len(group.members) == 1
    assert "rollout.max_restarts is reached" in capsys.readouterr().err


def test_the_death_of_the_last_worker_ends_the_run_and_names_it(short):
    group = short(1)
    [error] = all_of(group, Answers(), "kill:it")
    assert isinstance(error, WorkerDiedError)
    assert str(error).startswith(f"the episodes worker (process {group.latest[0].facts.pid} on ")


def test_more_workers_than_the_cluster_holds_are_refused_with_the_arithmetic(start):
    role = Role("episodes", "rollout.num_workers", "talker", distributed=True, workers=91)
    with pytest.raises(ConfigError, match=r"^rollout.num_workers: 91 workers take 0.1 free CPUs each") as refused:
        start().reserve([role])
    assert "10 CPUs" in str(refused.value)
