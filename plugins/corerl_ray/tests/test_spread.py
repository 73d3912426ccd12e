"""Requests reach two replicas by load."""

from itertools import chain

import pytest
from ray_toys import Generation, each, request, until

from corerl.errors import EngineDeadError
from corerl_ray import spread
from corerl_ray.spread import Loads

pytestmark = pytest.mark.xdist_group("ray")  # whose cluster is started once


@pytest.fixture
def rollout(groups):
    """Two replicas; the test says how many samples each has in hand at most."""
    _, rollout = groups
    each(rollout, "seen")
    rollout.loads.sessions.clear()
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


def test_what_a_dead_engine_had_in_hand_the_others_take_and_its_death_is_reported_in_the_end(rollout):
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
    assert Loads.of(1, 4).choose(spread.Piece((), 9, 9), at_once=True) == 0


def turn(rollout, **sessions):
    """The sessions that each replica is asked about, each once."""
    requests = [
        request(f"{name}{number}", session=name, **more) for number, (name, more) in enumerate(sessions.items())
    ]
    Generation(rollout, requests).result()
    return [sorted(name[0] for name in chain(*calls)) for calls, *_ in each(rollout, "seen")]


def test_requests_of_a_session_return_to_their_replica_whatever_is_beside_them(rollout):
    first, second = turn(rollout, a={}, b={}, c={}, d={})
    assert len(first) == len(second) == 2
    for order in ("dcba", "bd", "ca", "a"):
        asked = turn(rollout, **{name: {} for name in order})
        assert asked == [sorted(set(order) & set(first)), sorted(set(order) & set(second))]
    assert turn(rollout, **{name: {} for name in first}, e={}, f={}) == [first, ["e", "f"]]


def test_a_session_whose_replica_has_no_room_moves_to_the_one_with_the_fewest_tokens(rollout):
    assert turn(rollout, a={}) == [["a"], []]
    rollout.loads.most = 4
    full = Generation(rollout, [request("x", n=4, seconds=1.5, session="a")])
    until(lambda: [running for *_, running in each(rollout, "seen")] == [4, 0])
    assert turn(rollout, a={}) == [[], ["a"]]
    full.result()
    each(rollout, "seen")
    assert turn(rollout, a={}) == [[], ["a"]]  # now its prefix is there


def test_a_home_that_is_absent_is_no_home():
    loads = Loads.of(2, 4)
    loads.remember(1, ["a", "", "b"])
    assert dict(loads.sessions) == {"a": 1, "b": 1}
    requests = [request("x", session="a"), request("y", session="c")]
    assert [piece.home for piece in spread._cut(requests, loads, absent={1})] == [None, None]
    homes = {piece.home: piece for piece in spread._cut(requests, loads, absent=set())}
    assert homes.keys() == {1, None} and homes[1].positions == (0,)
    assert loads.choose(homes[1], at_once=False) == 1
    assert loads.choose(homes[1], at_once=False, without={1}) == 0


def test_the_oldest_sessions_are_forgotten(monkeypatch):
    monkeypatch.setattr(spread, "SESSIONS", 2)
    loads = Loads.of(2, 4)
    for replica, session in ((0, "a"), (1, "b"), (0, "a"), (1, "c")):
        loads.remember(replica, [session])
    assert dict(loads.sessions) == {"a": 0, "c": 1}


def test_more_of_a_session_than_its_replica_has_room_for_goes_to_the_others_in_pieces(rollout):
    rollout.loads.most = 4
    rollout.loads.remember(0, ["a"])
    requests = [request(number, seconds=0.2, session="a") for number in range(12)]
    assert Generation(rollout, requests).result() == [[str(number)] for number in range(12)]
    (calls, most, _), (others, more, _) = each(rollout, "seen")
    assert most == more == 4 and sorted(map(int, chain(*calls, *others))) == list(range(12))
