"""Roles whose workers start at the same time."""

import time
from contextlib import ExitStack
from functools import partial

import pytest
from ray_toys import ENGINE, TOY, Broken, Engine, Meeting, Slow, Toy

from corerl.contracts.runtimes import StartsTogether
from corerl.errors import ConfigError, RunError
from corerl.trainer.starting import Starts
from corerl_ray.processes import is_alive

pytestmark = pytest.mark.xdist_group("ray")  # whose cluster is started once


def test_workers_of_two_roles_are_built_at_the_same_time_and_both_can_be_called(start, tmp_path):
    runtime = start()
    assert isinstance(runtime, StartsTogether) and runtime.starts_together(TOY) and runtime.starts_together(ENGINE)
    spawn = {role.name: partial(runtime.spawn, role, Meeting, str(tmp_path), role.name) for role in (TOY, ENGINE)}
    started = Starts().together(spawn)
    assert [started[name].who() for name in ("actor", "rollout")] == ["actor", "rollout"]
    assert {member.role for member in runtime.waiter.members if member.facts} == {"actor", "rollout"}


def test_an_error_of_one_ends_the_others_at_once_and_leaves_no_process(start):
    began = time.monotonic()
    with pytest.raises(ConfigError, match="there is no model"), ExitStack() as stack:
        starts = Starts()
        stack.callback(starts.join)
        runtime = start()
        stack.callback(runtime.close)
        starts.together({"actor": partial(runtime.spawn, TOY, Broken), "rollout": partial(runtime.spawn, ENGINE, Slow)})
    assert time.monotonic() - began < 60
    assert runtime.waiter.members == []


def test_a_role_that_starts_when_the_runtime_is_closed_is_refused_and_leaves_no_process(start, tmp_path):
    runtime = start()
    toys = runtime.spawn(TOY, Toy)
    runtime.close()
    pids = [member.facts.pid for member in toys.members]
    with pytest.raises(RunError, match="the runtime is closed"):
        runtime.spawn(ENGINE, Engine)
    assert not any(map(is_alive, pids)) and runtime.waiter.members == []
