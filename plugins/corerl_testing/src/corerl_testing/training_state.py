"""Checks that a strategy's numbers depend only on its model: not on earlier calls or other processes."""

import functools
import json
import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from corerl.contracts.experience import Experience
from corerl.contracts.training_strategies import TrainingStrategy, TrainingStrategyFactory
from corerl.registry import Owner, Registries, Selected
from corerl_testing import zygote
from corerl_testing.fresh import whole_path
from corerl_testing.results import CheckFailed, CheckSkipped
from corerl_testing.training_reference import DEADLINE, FALLING, batch, build, copied_weights, require_equal, step
from corerl_testing.zygote import OTHER_SEED, Job, Kind

Factory = Selected[TrainingStrategyFactory]


def _forward(experience: Experience, strategy: TrainingStrategy) -> None:
    strategy.forward(experience, {"log_probs", "entropy"})


def _short_and_long(strategy: TrainingStrategy) -> None:
    _forward(batch(3).select(torch.tensor([1])), strategy)
    _forward(batch(3), strategy)


def _moved(strategy: TrainingStrategy) -> None:
    strategy.offload()
    strategy.onload()


def _left(strategy: TrainingStrategy) -> None:
    """Stop reading the weights early, like a rollout backend that refuses a tensor."""
    for number, _ in enumerate(strategy.weights()):
        if number == 2:
            break


HISTORIES: dict[str, Callable[[TrainingStrategy], object]] = {
    "a forward of the same batch": functools.partial(_forward, batch()),
    "a forward of one row": functools.partial(_forward, batch(3).select(torch.tensor([2]))),
    "a forward of one short row, and of all": _short_and_long,
    "weights()": copied_weights,
    "weights() that is left after three tensors": _left,
    "offload() and onload()": _moved,
}


def _history_does_not_matter(selected: Factory) -> None:
    """Two updates are equal after any earlier calls, and with any calls between them."""
    plain = build(selected, optim=FALLING)
    metrics = [step(plain, batch(number)) for number in range(2)]
    wanted = copied_weights(plain)
    for name, before in HISTORIES.items():
        strategy = build(selected, optim=FALLING)
        for number in range(2):
            before(strategy)
            given = step(strategy, batch(number))
            if given != metrics[number]:
                raise CheckFailed(f"after {name} update {number + 1} has the metrics {given} and not {metrics[number]}")
        require_equal(copied_weights(strategy), wanted, f"after {name} and two updates")


def _a_second_strategy(selected: Factory) -> None:
    """Two strategies that are used alternately, one of which is then dropped, are independent."""
    beside, other, frozen = build(selected, optim=FALLING), build(selected, optim=FALLING), build(selected, frozen=True)
    start = copied_weights(frozen)
    for number in range(2):
        step(other, batch(10 + number))
        frozen.forward(batch(), {"log_probs"})
        step(beside, batch(number))
    require_equal(copied_weights(frozen), start, "the frozen model beside two that are trained")
    del other, frozen
    alone = build(selected, optim=FALLING)
    for number in range(2):
        step(alone, batch(number))
    require_equal(copied_weights(beside), copied_weights(alone), "a strategy beside others, and the same alone")


def _a_fresh_process(selected: Factory) -> None:
    """Another process, with another seed of Python's hashes, gives bit-identical results."""
    if not isinstance(selected.entry.target, str):
        raise CheckSkipped("its target is no module:attribute, which another process could import")
    kind = Kind(OTHER_SEED, (__name__,))
    given = (whole_path(selected.entry.target), selected.options, torch.get_num_threads())
    with tempfile.TemporaryDirectory() as folder:  # for the model that it makes
        job = Job(environment={**os.environ, "TMPDIR": folder})
        how, answer = zygote.call(kind, job, DEADLINE, told, *given)
    if how == "raised":
        raise CheckFailed(f"in a fresh process {answer}")
    for name, value in json.loads(_told(selected)).items():
        if answer[name] != value:
            raise CheckFailed(
                f"in a fresh process {name} of two updates and a critic is {answer[name]}, and here {value}"
            )


def told(target: str, options: Any, threads: int) -> Any:
    """The values compared by :func:`_a_fresh_process`, for a target and its options, in this process."""
    torch.set_num_threads(threads)
    entry = Registries().training_strategies.entry("fresh", target, Owner("corerl-testing"))
    return json.loads(_told(Selected(entry, options)))


def _told(selected: Factory) -> str:
    """Metrics of two updates, and sums that change with any bit of a weight."""
    strategy = build(selected, optim=FALLING)
    numbers: dict[str, Any] = {f"update {number}": step(strategy, batch(number)) for number in range(2)}
    numbers["weights"] = _sums(strategy)
    numbers["critic"] = _sums(build(selected, head="value", seed=3))
    return json.dumps(numbers)


def _sums(strategy: TrainingStrategy) -> dict[str, int]:
    return {name: int(weight.view(torch.int32).long().sum()) for name, weight in copied_weights(strategy).items()}


STATE: dict[str, Callable[[Factory], None]] = {
    "history_does_not_matter": _history_does_not_matter,
    "a_second_strategy": _a_second_strategy,
    "same_in_a_fresh_process": _a_fresh_process,
}
