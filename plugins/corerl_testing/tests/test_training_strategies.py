"""The frame of the checks of training strategies; the checks themselves are held against the planted faults."""

import threading
from typing import Any

import pytest
import torch
from planted.training_strategies import FAULTS
from planted.training_strategies.wrapped import DEFAULT, Strategy
from torch import Tensor

from corerl.contracts.training_strategies import StrategySpec
from corerl.errors import ConfigError
from corerl.plugins import load_plugins
from corerl.registry import Owner, Registries, Selected
from corerl_testing import training_reference, training_strategies
from corerl_testing.results import CheckFailed, CheckSkipped
from corerl_testing.training_reference import OPTIM, Reference, batch, build
from corerl_torch.supervised import SupervisedObjective

needs_the_default = pytest.mark.skipif(
    DEFAULT not in load_plugins().registries.training_strategies, reason=f"'{DEFAULT}' is not installed"
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def selected(strategy: Any) -> Selected[Any]:
    return Selected(Registries().training_strategies.entry("t", strategy, Owner("tests")))


def run(strategy: Any, name: str) -> None:
    dict(training_strategies.checks(selected(strategy)))[name]()


def test_every_check_fails_for_some_fault() -> None:
    names = [name for name, _ in training_strategies.checks(selected(Strategy))]
    assert len(names) == len(set(names))
    assert {fault.check for fault in FAULTS} == set(names)


def test_a_strategy_for_another_device_is_passed_over() -> None:
    def cuda_only(spec: StrategySpec) -> Any:
        raise ConfigError("actor.device", "this strategy trains on cuda")

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(CheckSkipped, match=r"it does not run here: .* trains on cuda"):
        run(cuda_only, "log_probs")


@needs_the_default
@pytest.mark.parametrize("name", ["log_probs", "save_and_load"])
def test_the_default_handed_through_passes(name: str) -> None:
    """Two checks; the plugin's own tests run all of them on the default itself."""
    run(Strategy, name)


def test_a_target_that_no_process_can_import_is_not_tried_in_one() -> None:
    with pytest.raises(CheckSkipped, match="no module:attribute"):
        run(Strategy, "same_in_a_fresh_process")


class Hangs:
    """A strategy of which nothing ends."""

    def __init__(self, spec: StrategySpec) -> None:
        self.data_parallel_rank = 0

    def forward(self, *given: Any) -> None:
        threading.Event().wait()

    def weights(self, dtype: Any = None) -> Any:
        yield "first", torch.ones(1)
        threading.Event().wait()


def test_calls_that_hang_are_named_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_reference, "DEADLINE", 0.1)
    strategy = build(selected(Hangs))
    assert strategy.data_parallel_rank == 0
    with pytest.raises(CheckFailed, match=r"forward\(\) had not ended after 0\.1 s"):
        strategy.forward(batch(), {"log_probs"})
    weights = strategy.weights()
    assert next(iter(weights))[0] == "first"
    with pytest.raises(CheckFailed, match=r"weights\(\) had not ended after 0\.1 s"):
        next(iter(weights))


def test_the_reference_descends_along_the_gradient_that_a_difference_quotient_gives() -> None:
    def loss_with(shift: float) -> float:
        reference = Reference(OPTIM, 1.0, temperature=0.7)
        with torch.no_grad():
            reference.parameters["model.norm.weight"][3] += shift
        return reference.step(batch())["loss"]

    seen: dict[str, Tensor] = {}
    reference = Reference(OPTIM, 1e9, temperature=0.7)
    reference.step(batch(), SupervisedObjective())
    seen = {name: each.grad.clone() for name, each in reference.parameters.items() if each.grad is not None}
    quotient = (loss_with(1e-5) - loss_with(-1e-5)) / 2e-5
    assert float(seen["model.norm.weight"][3]) == pytest.approx(quotient, rel=1e-6)
