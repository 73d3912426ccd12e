"""Requests reach two replicas by load."""

from itertools import chain

import pytest
from ray_toys import Generation, each, request, until

from corerl.errors import EngineDeadError
from corerl_ray.spread import Loads

pytestmark = pytest.mark.xdist_group("ray")  # whose cluster is started once


@pytest.fixture
def rollout(groups):
    """Two replicas; the test says how many samples each has in hand at most."""
    _, rollout = groups
    each(rollout, "seen")
    before = rollout.loads.most
    yield rollout
    rollout.loads.most = before


def test_what_fits_is_one_call_for_each_replica_with_about_as_many_tokens(rollout):
    requests = [request(name, n=n) for name, n in zip("abcdef", (1, 5, 2, 2, 4, 2), strict=True)]
    assert Generation(rollout, requests).result() == [[one.request_id] * one.sampling.n for one in requests]
    [[one], most, _], [[other], more, _] = each(rollout, "seen")
    assert most == more == 8
    assert sorted(one + other) == list("abcdef") and one == sorted(one)


def test_an_idle_replica_is_not_called(rollout):
    assert Generation(rollout, [request("a")]).result() == [["a"]]
    assert [calls for calls, *_ in each(rollout, "seen")] == [[["a"]], []]
    assert Generation(rollout, []).result() == []


def test_more_than_fits_is_handed_out_in_pieces_and_the_faster_replica_gets_more(rollout):
    rollout.loads.most = 4
    slow, *quick = (request(number, n=2, seconds=1.5 if number == 0 else 0.01) for number in range(40))
    assert Generation(rollout, [slow, *quick]).result() == [[str(number)] * 2 for number in range(40)]
    (calls, most, _), (others, more, _) = each(rollout, "seen")
    assert sorted(map(int, chain(*calls, *others))) == list(range(40))
    assert max(most, more) <= 4 and max(map(len, calls + others)) == 1
    with_slow, without = (calls, others) if ["0"] in calls else (others, calls)
    assert len(with_slow) >= 1 and len(without) > 0
    assert not any(rollout.loads.samples) and not any(rollout.loads.tokens)


def test_a_request_larger_than_a_replica_may_have_is_handed_out_alone(rollout):
    rollout.loads.most = 4
    assert Generation(rollout, [request("a", n=9), request("b", n=9)]).result() == [["a"] * 9, ["b"] * 9]
    assert [most for _, most, _ in each(rollout, "seen")] == [9, 9]


def test_two_calls_at_a_time_share_the_replicas(rollout):
    first = Generation(rollout, [request("a", n=8, seconds=600.0)])
    until(lambda: rollout.loads.samples == [8, 0])
    second = Generation(rollout, [request("b", seconds=600.0)])
    until(lambda: rollout.loads.samples == [8, 1])
    until(lambda: each(rollout, "in_hand") == [8, 1])
    rollout.abort()
    assert (first.result(), second.result()) == ([["a"] * 8], [["b"]])
    assert [calls for calls, *_ in each(rollout, "seen")] == [[["a"]], [["b"]]]


def test_what_is_finished_comes_while_its_replica_goes_on_with_the_rest(rollout):
    came, in_hand = [], []
    for some in Generation(rollout, [request("slow", seconds=600.0), *map(request, "abc")]):
        came += some
        if len(came) == 3:
            in_hand = [running for *_, running in each(rollout, "seen")]
            rollout.abort()
    assert came[-1] == 0 and sorted(in_hand) == [0, 2]


def test_what_a_dead_engine_had_in_hand_the_others_take_and_its_death_is_told_in_the_end(rollout):
    rollout.end_engine([1], 1)
    came = {}
    with pytest.raises(EngineDeadError, match=r"^rollout worker 1 of 2: the engine ended$"):
        for some in Generation(rollout, [request(name, seconds=0.05) for name in "abcdef"]):
            assert not came.keys() & some.keys()
            came |= some
    assert [came[position] for position in range(6)] == [[name] for name in "abcdef"]
    (calls, *_), ([dead], *_) = each(rollout, "seen")
    assert [len(call) for call in calls] == [3, 2] and set(calls[1]) < set(dead)
    assert not any(rollout.loads.samples) and not any(rollout.loads.tokens)
    rollout.end_engine([], 0)
    assert Generation(rollout, [request("a"), request("b")]).result() == [["a"], ["b"]]


def test_when_all_engines_are_dead_nothing_is_waited_for(rollout):
    rollout.end_engine([0, 1], 0)
    with pytest.raises(EngineDeadError, match="the engine ended"):
        Generation(rollout, [request(name) for name in "abcd"]).result()
    rollout.end_engine([], 0)
    each(rollout, "seen")


def test_one_replica_has_no_bound():
    assert Loads.of(1, 4).choose(None, at_once=True) == 0
