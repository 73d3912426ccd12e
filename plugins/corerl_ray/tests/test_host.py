"""The stream of a worker's results, in this process, without a cluster."""

import threading
import time

from ray_toys import Engine, Generation, request

from corerl.errors import EngineDeadError
from corerl_ray.host import Failure, WorkerHost


def host_of(worker):
    host = WorkerHost.__new__(WorkerHost)
    host.worker, host._runners = worker, {}
    return host


def test_results_come_while_the_rest_runs():
    host = host_of(Engine())
    stream = host.stream("generate", [request("slow", seconds=0.5), request("a"), request("b", n=2)])
    first = next(stream)
    assert first == {1: ["a"], 2: ["b", "b"]} and host.worker.running == 4
    assert list(stream) == [{0: ["slow"]}] and host.worker.running == 0


def test_a_failure_comes_after_the_results():
    host = host_of(Engine())
    host.worker.left_to_live = 1
    *results, failure = host.stream("generate", [request("a"), request("b", seconds=0.1)])
    assert results == [{0: ["a"]}]
    assert isinstance(failure, Failure) and isinstance(failure.error("it"), EngineDeadError)


def test_streams_of_several_threads_overlap():
    host = host_of(Engine())
    began, found = time.monotonic(), []
    threads = [
        threading.Thread(target=lambda: found.extend(host.stream("generate", [request("a", seconds=1.0)])))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{0: ["a"]}] * 4
    assert host.worker.most == 4 and time.monotonic() - began < 4


def test_an_abandoned_stream_ends_its_work():
    host = host_of(Engine())
    stream = host.stream("generate", [request("a"), request("slow", seconds=600.0)])
    assert next(stream) == {0: ["a"]}
    began = time.monotonic()
    stream.close()
    assert time.monotonic() - began < 60  # of 600


def test_the_calls_of_these_tests_report_each_request_once():
    assert Generation(Engine(), [request("a"), request("b", n=2)]).result() == [["a"], ["b", "b"]]
