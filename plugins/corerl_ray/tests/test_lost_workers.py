"""One of several rollout workers is lost: the others do its work, and it comes back with the policy's weights."""

import asyncio
import os
import signal
import threading
from itertools import chain

import pytest
from ray_toys import ENGINE, TOY, Engine, Generation, Toy, each, request, until

from corerl.contracts.config import RuntimeConfig
from corerl.errors import EngineDeadError, WorkerDiedError
from corerl.rollout.engines import Engines
from corerl_ray.options import RayOptions
from corerl_ray.processes import is_alive
from corerl_ray.runtime import RayRuntime

chaos = pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="one more lost worker: set CORERL_CHAOS=1")

pytestmark = pytest.mark.xdist_group("ray")  # whose cluster is started once


@pytest.fixture(scope="module", params=["object_store", "broadcast"])
def two(request, cluster):
    """A runtime with an actor and two rollout workers of their own, for tests that leave them well, and a last one."""
    options = RayOptions(workers=1, rollout_workers=2, weights_transport=request.param)
    runtime = RayRuntime(RuntimeConfig(name="ray"), options)
    yield runtime, runtime.spawn(TOY, Toy), runtime.spawn(ENGINE, Engine)
    runtime.close()


@pytest.fixture
def listening(two):
    """As ``two``: the losses of a test reach its :class:`Engines`, and those of later tests do not."""
    runtime, actor, rollout = two
    yield runtime, actor, rollout, Engines(runtime, actor, rollout, 3)
    rollout._listener = None


def kill(member):
    os.kill(member.facts.pid, signal.SIGKILL)


def called(rollout):
    """The requests of each worker since it was last asked."""
    return [sorted(chain(*calls)) for calls, *_ in each(rollout, "seen")]


@pytest.mark.parametrize("two", ["object_store"], indirect=True)
def test_its_requests_go_to_the_others_and_it_gets_none_again_before_the_weights(two):
    runtime, actor, rollout = two
    runtime.send_weights(actor, rollout, 1)
    doomed = rollout.members[1]
    came = {}
    stream = Generation(rollout, [request(name, seconds=0.5) for name in "abcd"])
    until(lambda: [running for *_, running in each(rollout, "seen")] == [2, 2])
    kill(doomed)
    with pytest.raises(EngineDeadError, match=rf"^the rollout worker 1 of 2 \(process {doomed.facts.pid} on") as lost:
        for some in stream:
            came |= some
    assert [came[position] for position in range(4)] == [["a"], ["b"], ["c"], ["d"]]
    assert lost.value.workers == ((doomed.facts.address, doomed.facts.pid),)
    assert not any(rollout.loads.samples) and not any(rollout.loads.tokens)

    each(rollout, "seen")
    assert Generation(rollout, [request("e"), request("f")]).result() == [["e"], ["f"]]  # the loss is reported once
    assert called(rollout) == [["e", "f"]]

    rollout.restart()
    assert [member.rank for member in rollout.members] == [0, 1] and is_alive(rollout.members[1].facts.pid)
    Generation(rollout, [request("g"), request("h")]).result()
    assert called(rollout) == [["g", "h"], []]
    runtime.send_weights(actor, rollout, 2)
    assert [version for version, _ in each(rollout, "received")] == [2, 2]
    Generation(rollout, [request("i"), request("j")]).result()
    assert sorted(called(rollout)) == [["i"], ["j"]]


def test_weights_reach_the_others_if_one_is_lost_on_the_way(two):
    runtime, actor, rollout = two
    runtime.send_weights(actor, rollout, 1)
    rollout.read_on(False)
    errors = []

    def send():
        try:
            runtime.send_weights(actor, rollout, 2)
        except EngineDeadError as error:
            errors.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    until(lambda: [version for version, _ in each(rollout, "received")] == [2, 2])
    kill(rollout.members[1])
    until(lambda: len(rollout.members) == 1)
    rollout.read_on(True)
    thread.join(60)
    assert [len(error.workers) for error in errors] == [1]
    runtime.send_weights(actor, rollout, 3, verify=True)
    assert [(version, len(weights)) for version, weights in each(rollout, "received")] == [(3, 12)]
    rollout.restart()
    runtime.send_weights(actor, rollout, 4, verify=True)
    assert [(version, len(weights)) for version, weights in each(rollout, "received")] == [(4, 12)] * 2
    assert rollout.absent() == set()


def test_a_rollout_worker_that_hangs_is_lost_too(start):
    runtime = start(rollout_workers=2, hang_timeout=2)
    rollout = runtime.spawn(ENGINE, Engine)
    hung = rollout.members[1]
    os.kill(hung.facts.pid, signal.SIGSTOP)
    came = {}
    pattern = r"^the rollout worker 1 of 2 \(process \d+ on .*\) gives no sign of life for 2 s: it is stopped"
    with pytest.raises(EngineDeadError, match=pattern):
        for some in Generation(rollout, [request("a"), request("b")]):
            came |= some
    assert came == {0: ["a"], 1: ["b"]}
    until(lambda: not is_alive(hung.facts.pid))


@pytest.mark.parametrize("raises", [False, True], ids=["waits", "raises"])
def test_a_rank_that_hangs_is_named_and_not_the_one_that_waits_for_it(start, raises):
    group = start(workers=2, hang_timeout=2).spawn(TOY, Toy)
    hung = group.members[1]
    os.kill(hung.facts.pid, signal.SIGSTOP)
    pattern = rf"^the actor worker 1 of 2 \(process {hung.facts.pid} on .*\) gives no sign of life .*: it is stopped.*"
    place = r"; the actor worker 0 of 2 is in wait_for_others \(.*ray_toys.py, line \d+\)"
    why = "; actor worker 0 of 2: it took too long" if raises else place
    with pytest.raises(WorkerDiedError, match=pattern + why):
        group.wait_for_others(raises)
    until(lambda: not any(is_alive(member.facts.pid) for member in group.members))


def generated(engines, *names):
    """Names of the requests in the order in which they came."""
    finished = []
    asyncio.run(engines.generate([request(name) for name in names], lambda _, names: finished.append(names[0])))
    return finished


def on(member, name, *arguments):
    """A call of a worker that its group does without."""
    import ray

    return ray.get(member.host.call.remote(name, {}, *arguments))


@pytest.mark.parametrize("two", ["object_store", pytest.param("broadcast", marks=chaos)], indirect=True)
def test_an_engine_that_ends_is_started_in_the_background_while_the_others_do_its_work(listening, capsys):
    _, _, rollout, engines = listening
    updates = each(rollout, "number_of_updates")
    engines.send_weights(1)
    ended = rollout.members[1]
    rollout.let_start(False)
    rollout.end_engine([1], 0)
    assert sorted(generated(engines, *"abcdef")) == list("abcdef")  # and it is not up
    assert (engines.restarts, rollout.absent()) == (1, {1})
    each(rollout, "seen")
    generated(engines, "g", "h")
    engines.send_weights(2)
    assert (called(rollout), each(rollout, "received")[0][0]) == ([["g", "h"]], 2)

    on(ended, "let_start", True)
    until(lambda: not rollout.absent())
    rollout.let_start(True)
    assert [version for version, _ in each(rollout, "received")] == [2, 2]
    assert each(rollout, "number_of_updates") == [
        2 + before for before in updates
    ]  # the one that had the weights was left alone
    each(rollout, "seen")
    generated(engines, "i", "j")
    assert sorted(called(rollout)) == [["i"], ["j"]]
    engines.send_weights(3)
    assert [version for version, _ in each(rollout, "received")] == [3, 3]
    again = "it is started again in the background (1 of rollout.max_restarts = 3)"
    assert capsys.readouterr().err.splitlines() == [
        f"rollout worker 1 of 2: the engine ended; {again}",
        "rollout worker 1 of 2 takes requests again, with the weights of version 2",
    ]


@pytest.mark.parametrize("two", ["object_store"], indirect=True)
def test_a_worker_that_is_killed_is_started_in_the_background_and_gets_its_weights_once_the_policy_is_free(listening):
    _, _, rollout, engines = listening
    engines.send_weights(1)
    doomed = rollout.members[1]
    with engines.actor_in_use:
        kill(doomed)
        assert sorted(generated(engines, *"abcd")) == list("abcd")
        assert engines.lost == {(doomed.facts.address, doomed.facts.pid)}
        until(lambda: len(rollout.members) == 2)
        generated(engines, "e", "f")
        assert rollout.absent() == {1} and rollout.members[1].facts.pid != doomed.facts.pid
        engines.send_weights(2)  # it is up, and gets them with the others
        assert rollout.absent() == set()
    assert [version for version, _ in each(rollout, "received")] == [2, 2]
    assert engines.restarts == 1


@pytest.mark.parametrize(
    ("number", "most", "why"),
    [
        pytest.param(signal.SIGKILL, 2, "killed (SIGKILL", marks=chaos),
        pytest.param(signal.SIGKILL, 1, "killed (SIGKILL", marks=chaos),
        pytest.param(signal.SIGSTOP, 2, "it gave no sign of life for 2 s", marks=chaos),
    ],
    ids=["killed", "limit", "stopped"],
)
def test_a_worker_that_ends_or_hangs_while_it_is_started_again_is_started_once_more_if_the_limit_allows(
    start, number, most, why, capsys
):
    runtime = start(rollout_workers=2, weights_transport="object_store", hang_timeout=2)
    actor, rollout = runtime.spawn(TOY, Toy), runtime.spawn(ENGINE, Engine)
    engines = Engines(runtime, actor, rollout, most)
    engines.send_weights(1)
    environment, ended = runtime.environment_of, []

    def dying(member, local_rank, facts, devices):
        if not ended:
            ended.append(facts.pid)
            os.kill(facts.pid, number)
        return environment(member, local_rank, facts, devices)

    runtime.environment_of = dying
    kill(rollout.members[1])
    assert sorted(generated(engines, *"abcd")) == list("abcd")
    until(lambda: not engines._has_thread)
    assert rollout.absent() == (set() if most == 2 else {1}) and engines.restarts == most
    assert sorted(generated(engines, "e", "f")) == ["e", "f"]
    until(lambda: not is_alive(ended[0]))
    said = capsys.readouterr().err
    assert f"the rollout worker 1 of 2 died while it was started again: {why}" in said
    last = ["takes requests again", "rollout.max_restarts = 1 is reached: the run continues without it"][most == 1]
    assert last in said.splitlines()[-1]


@chaos
@pytest.mark.parametrize("two", ["object_store"], indirect=True)
def test_the_last_engine_that_ends_is_waited_for(listening):
    _, _, rollout, engines = listening
    updates = each(rollout, "number_of_updates")
    engines.send_weights(1)
    rollout.end_engine([0, 1], 0)
    assert sorted(generated(engines, *"abcd")) == list("abcd")
    until(lambda: not rollout.absent())
    assert engines.restarts == 2 and [version for version, _ in each(rollout, "received")] == [1, 1]
    assert all(now > before + 1 for now, before in zip(each(rollout, "number_of_updates"), updates, strict=True))


@pytest.mark.parametrize("two", ["object_store"], indirect=True)
def test_a_run_that_ends_while_a_worker_is_started_leaves_none(listening):
    """The last one of these workers: it ends their runtime."""
    runtime, _, rollout, engines = listening
    engines.send_weights(1)
    begun = []
    build = rollout.restart_member._build
    object.__setattr__(
        rollout.restart_member, "_build", lambda member, seat: (begun.append(member), build(member, seat))[1]
    )
    kill(rollout.members[1])
    generated(engines, "a", "b")
    until(lambda: begun)
    engines.close()
    runtime.close()
    assert not rollout.reviving.locked() and begun[0].host._get_local_state() is not None
