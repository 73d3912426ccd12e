"""Runtime ``local``: workers of this process."""

import dataclasses

import pytest

from corerl.contracts.config import ModelConfig, RolloutConfig, RuntimeConfig, TrainConfig
from corerl.contracts.runtimes import Role
from corerl.errors import ConfigError, RunError
from corerl.runtime.local import LocalRuntime

ROLE = Role("rollout", "rollout.name", "mine", True)
BESIDE = dataclasses.replace(ROLE, starts_beside=True)


class Engine:
    """A worker that still starts once it is constructed."""

    def __init__(self, error=None):
        self.error, self.calls = error, []

    def is_starting(self):
        return not self.calls

    def started(self):
        self.calls.append("started")
        if self.error:
            raise self.error

    def close(self):
        self.calls.append("closed")


def test_a_worker_has_started_when_it_is_spawned_unless_its_role_starts_beside_others():
    runtime = LocalRuntime(RuntimeConfig())
    assert not runtime.spawn(ROLE, Engine).is_starting()
    assert runtime.spawn(BESIDE, Engine).is_starting()


@pytest.mark.parametrize("role", [ROLE, BESIDE])
def test_a_worker_that_still_starts_or_could_not_start_is_closed_with_the_runtime(role):
    made = []

    class Watched(Engine):
        def __init__(self):
            super().__init__(RunError("no kernel fits"))
            made.append(self)

    runtime = LocalRuntime(RuntimeConfig())
    if role is BESIDE:
        runtime.spawn(role, Watched)
    else:
        with pytest.raises(RunError, match="no kernel fits"):
            runtime.spawn(role, Watched)
    runtime.close()
    assert made[0].calls[-1] == "closed"


def test_workers_for_episodes_are_refused():
    role = Role("episodes", "rollout.num_workers", "mine", True, workers=2)
    with pytest.raises(ConfigError, match=r"^rollout.num_workers: runtime 'local' is one process: use runtime 'ray'"):
        LocalRuntime(RuntimeConfig()).reserve([ROLE, role])
    config = TrainConfig(ModelConfig("none"), rollout=RolloutConfig(num_workers=2))
    [error] = LocalRuntime.examine("runtime", config, None)
    assert error.key == "rollout.num_workers"
