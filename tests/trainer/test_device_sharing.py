"""Who is moved when: every call of a training step, with and without each of the two options."""

import pytest

from corerl.errors import EngineDeadError
from corerl.trainer.device_sharing import DeviceSharing

HANDOVERS = {
    "to_training": lambda devices: devices.to_training(),
    "to_weights": lambda devices: devices.to_weights(),
    "to_generation": lambda devices: devices.to_generation(),
    "first to_generation": lambda devices: devices.to_generation(asleep=False),
}

ENGINE = {
    "to_training": ["engine.sleep"],
    "to_weights": ["actor.free_cache", "ref.free_cache", "engine.wake(kv_cache=False)"],
    "to_generation": ["engine.wake"],
    "first to_generation": [],
}

ROLES = {
    "to_training": ["actor.onload", "ref.onload"],
    "to_weights": [],
    "to_generation": ["actor.offload", "ref.offload"],
    "first to_generation": ["actor.offload", "ref.offload"],
}


class Recorder:
    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def __getattr__(self, operation):
        def call(**arguments):
            given = ", ".join(f"{name}={value}" for name, value in arguments.items())
            self.calls.append(f"{self.name}.{operation}" + (f"({given})" if given else ""))

        return call


@pytest.fixture
def devices():
    """``devices(free_engine, offload)`` and the list of calls."""
    calls = []

    def make(free_engine, offload):
        roles = [Recorder("actor", calls), Recorder("ref", calls)]
        return DeviceSharing(Recorder("engine", calls), roles, free_engine=free_engine, offload=offload), calls

    return make


@pytest.mark.parametrize("moment", HANDOVERS)
def test_nothing_moves_where_nothing_is_shared(devices, moment):
    sharing, calls = devices(free_engine=False, offload=False)
    HANDOVERS[moment](sharing)
    assert calls == []


@pytest.mark.parametrize("moment", HANDOVERS)
def test_the_engine_alone_gives_its_memory_back(devices, moment):
    sharing, calls = devices(free_engine=True, offload=False)
    HANDOVERS[moment](sharing)
    assert calls == ENGINE[moment]


@pytest.mark.parametrize("moment", HANDOVERS)
def test_the_roles_alone_leave_the_device(devices, moment):
    sharing, calls = devices(free_engine=False, offload=True)
    HANDOVERS[moment](sharing)
    assert calls == ROLES[moment]


def test_each_leaves_before_the_other_comes(devices):
    sharing, calls = devices(free_engine=True, offload=True)
    sharing.to_training()
    assert calls == ["engine.sleep", "actor.onload", "ref.onload"]
    calls.clear()
    sharing.to_generation()
    assert calls == ["actor.offload", "ref.offload", "engine.wake"]


@pytest.mark.parametrize(("free_engine", "offload"), [(True, True), (True, False), (False, True), (False, False)])
def test_the_last_checkpoint_finds_the_roles_on_the_device_though_the_engine_has_ended(devices, free_engine, offload):
    sharing, calls = devices(free_engine, offload)

    def sleep():
        calls.append("engine.sleep")
        raise EngineDeadError("it has ended")

    sharing.rollout.sleep = sleep
    sharing.to_last_checkpoint()
    assert calls == ["engine.sleep"] * free_engine + ["actor.onload", "ref.onload"] * offload
