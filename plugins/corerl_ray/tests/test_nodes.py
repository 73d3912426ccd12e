"""Processes on the other nodes of an engine: a stopped one is lost within ``hang_timeout``."""

import os
import signal
import time

import pytest
from ray_toys import until

from corerl.errors import EngineDeadError
from corerl_ray.nodes import OtherNode, Parts
from corerl_ray.processes import is_alive

pytestmark = pytest.mark.xdist_group("ray")  # whose cluster is started once


def test_a_stopped_process_of_another_node_is_lost_and_ended_also_if_the_wait_is_for_a_third(cluster):
    """A wait for a healthy node, whose step waits for the stopped one, ends with the name of the stopped one."""
    import ray

    parts = Parts(hang_timeout=3.0)
    healthy, stopped = (OtherNode(name, None, {}, {}, {}, 60.0, 60.0, parts) for name in ("healthy", "stopped"))
    pids = []
    for node in (healthy, stopped):
        node._host_anew()
        facts = ray.get(node._host.facts.remote())
        parts.asked[node.address] = facts.node, facts.asked
        pids.append(facts.pid)
    assert [node.apply(lambda host: os.getpid())() for node in (healthy, stopped)] == pids
    wait = healthy.apply(lambda host: time.sleep(30))
    os.kill(pids[1], signal.SIGSTOP)
    began = time.monotonic()
    message = (
        rf"^the engine has lost its part on node stopped: its process {pids[1]} gives no sign of life .*: it is stop"
    )
    with pytest.raises(EngineDeadError, match=message):
        wait()
    assert time.monotonic() - began < 20
    until(lambda: not is_alive(pids[1]))
    assert is_alive(pids[0])
    for node in (healthy, stopped):
        ray.kill(node._host)
