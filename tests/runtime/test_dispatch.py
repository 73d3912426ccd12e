"""What worker methods declare, and the runtime of one process."""

import pytest

from corerl.contracts.config import RuntimeConfig
from corerl.contracts.dispatch import Dispatch, Done, Place, begin, dispatch, dispatch_of
from corerl.contracts.runtimes import Pool, Role
from corerl.errors import ConfigError
from corerl.rollout.worker import RolloutWorker
from corerl.runtime.local import LocalRuntime
from corerl.trainer.workers import CriticWorker, PolicyWorker, ReferenceWorker

ROLE = Role("actor", "actor.strategy", "torch", distributed=False)


class Echo:
    closed = False

    @dispatch("all")
    def echo(self, value):
        return value

    def plain(self):
        raise AssertionError("not called here")

    def close(self):
        self.closed = True


def test_a_method_stays_a_plain_method():
    assert Echo().echo(3) == 3
    assert dispatch_of(Echo, "echo") == Dispatch("all")


def test_a_call_begins_where_it_can_and_is_over_where_it_cannot():
    assert begin(Echo().echo, 3) == Done(3) and Done(3).result() == 3

    def method(value):
        raise AssertionError("it is only begun")

    method.submit = lambda value, *, more: ("begun", value, more)
    assert begin(method, 3, more=4) == ("begun", 3, 4)


@pytest.mark.parametrize("name", ["plain", "missing"])
def test_a_method_without_a_declaration_is_refused(name):
    with pytest.raises(AttributeError, match=rf"Echo\.{name} cannot be called on a group"):
        dispatch_of(Echo, name)


@pytest.mark.parametrize("worker", [PolicyWorker, CriticWorker, ReferenceWorker])
def test_models_split_batches(worker):
    assert dispatch_of(worker, "forward") == Dispatch("split", "join")
    if worker is not ReferenceWorker:
        assert dispatch_of(worker, "update") == Dispatch("split", "rank_zero")
        assert dispatch_of(worker, "save") == dispatch_of(worker, "load") == Dispatch("all")


def test_generation_is_spread_over_the_replicas():
    assert dispatch_of(RolloutWorker, "generate") == Dispatch("spread")
    assert dispatch_of(RolloutWorker, "close") == Dispatch("all")


def test_in_one_process_a_worker_is_its_own_group_and_a_call_is_made_at_once():
    runtime = LocalRuntime(RuntimeConfig())
    worker = runtime.spawn(ROLE, Echo)
    assert isinstance(worker, Echo)
    assert worker.echo(4) == 4
    runtime.close()
    assert worker.closed


@pytest.mark.parametrize("name", ["nnodes", "n_gpus_per_node"])
def test_one_process_refuses_more_than_it_can_use(name):
    with pytest.raises(ConfigError, match=f"runtime.{name}: 2 is more than runtime 'local'"):
        LocalRuntime(RuntimeConfig(**{name: 2}))


def test_one_process_has_no_pool_for_a_role():
    role = Role("rollout", "rollout.name", "hf", distributed=True, pool=Pool(1, 2))
    with pytest.raises(ConfigError, match=r"^rollout.n_gpus_per_node: runtime 'local' is one process"):
        LocalRuntime(RuntimeConfig()).reserve([ROLE, role])


def test_a_lone_worker_has_all_the_work():
    assert Place() == Place(0, 1)
