"""The time of an episode, by hand."""

from corerl.batch.rollouts import RequestRecord
from corerl.batch.times import KINDS, context, totals


def request(number, asked, sent, answered, *, parent=-1, read=0, sampled=0):
    return RequestRecord(number, parent, read, sampled, asked, sent, answered, "stop")


def test_of_overlapping_requests_the_one_in_the_engine_counts():
    parallel = [request(0, 0.0, 1.0, 4.0), request(1, 2.0, 3.0, 6.0), request(2, 5.0, 8.0, 9.0)]
    wanted = {"waiting": 3.0, "generating": 6.0, "tool": 1.0, "scoring": 2.0}
    assert totals(parallel, {"played": 10.0, "scored": 2.0}) == wanted
    assert tuple(wanted) == KINDS


def test_the_context_is_that_of_the_longest_path():
    requests = [request(0, 0, 0, 0, read=10, sampled=5), request(1, 0, 0, 0, parent=0, read=2, sampled=3)]
    requests += [request(2, 0, 0, 0, parent=0, read=1, sampled=1), request(3, 0, 0, 0, read=18, sampled=1)]
    assert context(requests) == 20
    assert context([]) == 0
