"""The phases of an episode, by hand."""

import pytest

from corerl.batch.rollouts import RequestRecord
from corerl.batch.times import KINDS, totals
from corerl_tools.episodes.times import Phase, phases, turns


def request(number, asked, sent, answered, *, parent=-1, read=0, sampled=0):
    return RequestRecord(number, parent, read, sampled, asked, sent, answered, "stop")


ONE_BY_ONE = [request(0, 1.0, 2.0, 5.0), request(1, 7.0, 7.0, 8.0)]
PARALLEL = [request(0, 0.0, 1.0, 4.0), request(1, 2.0, 3.0, 6.0), request(2, 5.0, 8.0, 9.0)]


def test_between_an_answer_and_the_next_request_is_the_agent_s_own_time():
    found = phases(ONE_BY_ONE, {"played": 9.5, "scored": 0.5})
    assert found == [
        *(Phase("tool", 0.0, 1.0), Phase("waiting", 1.0, 2.0), Phase("generating", 2.0, 5.0), Phase("tool", 5.0, 7.0)),
        *(Phase("generating", 7.0, 8.0), Phase("tool", 8.0, 9.5), Phase("scoring", 9.5, 10.0)),
    ]


def test_of_overlapping_requests_the_one_in_the_engine_counts():
    found = phases(PARALLEL, {"played": 9.0, "scored": 0.0})
    assert found == [
        Phase("waiting", 0.0, 1.0),
        Phase("generating", 1.0, 6.0),
        Phase("waiting", 6.0, 8.0),
        Phase("generating", 8.0, 9.0),
    ]


@pytest.mark.parametrize("requests", [[], ONE_BY_ONE, PARALLEL, PARALLEL[::-1]])
def test_the_phases_fill_the_episode_without_gaps(requests):
    seconds = {"played": 10.0, "scored": 2.0}
    found = phases(requests, seconds)
    assert [each.end for each in found[:-1]] == [each.start for each in found[1:]]
    assert (found[0].start, found[-1].end) == (0.0, 12.0)
    assert sum(totals(requests, seconds).values()) == 12.0
    assert tuple(totals(requests, seconds)) == KINDS


def test_without_a_clock_nothing_took_time():
    assert phases([], {}) == [] and totals([], {}) == dict.fromkeys(KINDS, 0.0)


def test_the_tool_time_before_a_request_is_that_without_any_other_request():
    assert [each.tool for each in turns(ONE_BY_ONE)] == [1.0, 2.0]
    assert [(each.tool, each.waiting, each.generating) for each in turns(PARALLEL)] == [(0, 1, 3), (0, 1, 3), (0, 3, 1)]
