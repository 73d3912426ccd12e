"""The frame of the checks of rollout backends; the checks themselves are held against the planted faults."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from planted.rollout_backends import FAULTS
from planted.rollout_backends.wrapped import DEFAULT, Backend

from corerl.contracts.config import RolloutConfig
from corerl.contracts.rollout_backends import Completion, GenerationRequest
from corerl.errors import ConfigError
from corerl.plugins import load_plugins
from corerl.registry.base import Entry, Owner, Selected
from corerl_testing import rollout_backends, rollout_engine
from corerl_testing.devices import VARIABLE
from corerl_testing.results import CheckFailed, CheckSkipped
from corerl_testing.rollout_backends import CHECKS

needs_the_default = pytest.mark.skipif(
    DEFAULT not in load_plugins().registries.rollout_backends, reason=f"'{DEFAULT}' is not installed"
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def run(backend: Any, name: str, tolerance: float | None = None) -> None:
    entry: Entry[Any] = Entry("rollout backend", "b", backend, Owner("tests"))
    dict(rollout_backends.checks(Selected(entry), tolerance=tolerance))[name]()


class Quiet(Backend):
    """Takes no on_finished."""

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:  # type: ignore[override]
        return await super().generate(requests)


class Rounded(Backend):
    """Log-probs with two decimals."""

    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        return replace(completion, log_probs=[round(each, 2) for each in completion.log_probs])


@needs_the_default
def test_a_backend_that_tells_nothing_is_passed_over() -> None:
    with pytest.raises(CheckSkipped, match="takes no on_finished"):
        run(Quiet, "finished_requests_are_told")


def test_a_backend_for_another_device_is_passed_over() -> None:
    def cuda_only(model: Any, rollout: Any, *, device: str) -> Any:
        raise ConfigError("actor.device", "this engine runs on cuda")

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(CheckSkipped, match=r"it does not run here: .* runs on cuda"):
        run(cuda_only, "log_probs")


def test_a_backend_that_does_not_come_up_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(model: Any, rollout: Any, *, device: str) -> Any:
        return asyncio.run(asyncio.sleep(60))

    monkeypatch.setattr(rollout_engine, "START_DEADLINE", 0.1)
    with pytest.raises(CheckFailed, match=r"starting had not ended after 0\.1 s"):
        run(hangs, "log_probs")


class Starting(Backend):
    """Starts for half a second after its constructor has returned; generation waits for it."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._end = time.monotonic() + 0.5

    def is_starting(self) -> bool:
        return time.monotonic() < self._end

    def started(self) -> None:
        time.sleep(max(0.0, self._end - time.monotonic()))

    async def generate(self, *given: Any, **named: Any) -> Any:
        self.started()
        return await super().generate(*given, **named)


@needs_the_default
def test_the_start_of_an_engine_does_not_count_as_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_engine, "DEADLINE", 0.4)
    run(Starting, "no_requests")


def test_an_engine_that_does_not_come_up_is_not_waited_for_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    class Never(Starting):
        def __init__(self, *given: Any, **named: Any) -> None:
            pass

        def started(self) -> None:
            time.sleep(60)

        def close(self) -> None:
            closed.append(self)

    monkeypatch.setattr(rollout_engine, "START_DEADLINE", 0.5)
    with pytest.raises(CheckFailed, match=r"started\(\) had not ended after 0\.5 s"):
        run(Never, "no_requests")
    assert len(closed) == 1


@needs_the_default
def test_a_wider_tolerance_lets_a_rounder_engine_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(CheckFailed, match=r"tolerance 0\.0001"):
        run(Rounded, "log_probs")
    run(Rounded, "log_probs", tolerance=0.02)


@needs_the_default
@pytest.mark.parametrize("name", ["samples_follow_what_is_kept", "common_beginnings"])
def test_a_check_can_be_the_first(name: str) -> None:
    run(Backend, name)


def test_every_check_is_yielded_and_fails_for_some_fault() -> None:
    entry: Entry[Any] = Entry("rollout backend", "b", Backend, Owner("tests"))
    assert [name for name, _ in rollout_backends.checks(Selected(entry))] == list(CHECKS)
    assert {fault.check for fault in FAULTS} == set(CHECKS)


def test_the_default_is_asked_for_by_its_name() -> None:
    assert RolloutConfig().name == DEFAULT
    assert {fault.requires for fault in FAULTS} == {DEFAULT}
