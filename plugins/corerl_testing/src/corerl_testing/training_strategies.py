"""Checks of training strategies, on a tiny model, compared with plain transformers.

Each check builds the model anew, on the CPU, or on a CUDA device if the strategy refuses the CPU (RequestError).
"""

import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from corerl.contracts.token_outputs import Output
from corerl.contracts.training_strategies import MicroBatching, TrainingStrategyFactory
from corerl.registry import Selected
from corerl_testing.results import CheckFailed, Run
from corerl_testing.tiny_model import in_bf16, reference, tiny_model
from corerl_testing.training_critics import CRITICS
from corerl_testing.training_lifecycle import LIFECYCLE
from corerl_testing.training_partitions import PARTITIONS, words
from corerl_testing.training_reference import (
    OPTIM,
    Reference,
    batch,
    build,
    error,
    given_output,
    split_rows,
    step,
    tolerance,
    true_outputs,
)
from corerl_testing.training_replays import REPLAYS
from corerl_testing.training_state import STATE
from corerl_testing.training_updates import OUTPUTS, UPDATES

Factory = Selected[TrainingStrategyFactory]


def checks(selected: Factory) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    for output in OUTPUTS:
        yield output, functools.partial(_forward, selected, output, 1.0)
    for name, check in {**CHECKS, **UPDATES, **PARTITIONS, **CRITICS, **STATE, **REPLAYS, **LIFECYCLE}.items():
        yield name, functools.partial(check, selected)


def _forward(selected: Factory, output: Output, temperature: float) -> None:
    """The output of each row equals that of the row alone in plain transformers."""
    experience = batch()
    expected = true_outputs(reference(tiny_model()), experience, output, temperature)
    for cut in (MicroBatching(max_sequences=100), MicroBatching(max_sequences=2), MicroBatching(max_tokens=30)):
        strategy = build(selected, temperature=temperature, micro_batching=cut)
        given = given_output(strategy.forward(experience, {output}), output)
        shape = (*experience.response_mask.shape, *expected[0].shape[1:])
        if given.shape != shape or given.dtype != torch.float32 or given.device.type != "cpu" or given.requires_grad:
            kind = f"{given.dtype} on {given.device.type}{' with a gradient' if given.requires_grad else ''}"
            raise CheckFailed(f"{output} is {tuple(given.shape)} {kind}: it must be {shape}, float32, on the CPU")
        if given[~experience.response_mask].any():
            raise CheckFailed(f"{output} is not 0 outside the responses")
        off = max(error(given[row, : len(each)], each) for row, each in enumerate(expected))
        if not off <= tolerance(strategy):
            raise CheckFailed(
                f"{output} under softmax(logits / {temperature:g}) is up to {off:.2g} off a plain forward of "
                f"transformers, row by row, with {words(cut)}"
                f"{_precision(given, expected, temperature) if output == 'log_probs' else ''}"
            )


def _precision(given: Tensor, expected: list[Tensor], temperature: float) -> str:
    """A remark if the errors of log_probs, (B, T), have the size of bf16 rounding."""
    rows = [
        (prompt, response, temperature, given[row, : len(response)].double() - expected[row])
        for row, (prompt, response) in enumerate(split_rows(batch()))
    ]
    return in_bf16(reference(tiny_model()), rows)


def _temperature(selected: Factory) -> None:
    for temperature in (0.5, 2.0):
        for output in OUTPUTS:
            _forward(selected, output, temperature)


def _only_what_is_wanted(selected: Factory) -> None:
    strategy = build(selected)
    for output in OUTPUTS:
        outputs = strategy.forward(batch(), [output])
        extra = [name for name, tensor in outputs._asdict().items() if tensor is not None and name != output]
        if extra:
            raise CheckFailed(f"forward() returned {', '.join(extra)} where {output} alone was wanted")


def _frozen(selected: Factory) -> None:
    """A model without an optimizer gives the same outputs as a trained one."""
    outputs = [
        given_output(build(selected, frozen=frozen).forward(batch(), {"log_probs"}), "log_probs")
        for frozen in (True, False)
    ]
    if (outputs[0] - outputs[1]).abs().max() > tolerance(build(selected)):
        raise CheckFailed("the log-probs of a model with optim=None are not those of one that is trained")


def _forward_after_updates(selected: Factory) -> None:
    """No output is cached across weight updates; calls in between have no effect."""
    strategy, true = build(selected), Reference(OPTIM, 1.0)
    for number in range(2):
        strategy.forward(batch(), {"log_probs"})
        strategy.forward(batch(5), {"log_probs", "entropy"})
        step(strategy, batch(number))
        true.step(batch(number))
    given = given_output(strategy.forward(batch(), {"log_probs"}), "log_probs")
    expected = true_outputs(true.model, batch(), "log_probs", 1.0)
    off = max(error(given[row, : len(each)], each) for row, each in enumerate(expected))
    if not off <= 100 * tolerance(strategy):  # the updates change log-probs by more than rounding
        raise CheckFailed(
            f"log_probs after updates are up to {off:.2g} off those of the weights after the same by hand"
        )


CHECKS: dict[str, Callable[[Factory], None]] = {
    "temperature": _temperature,
    "only_what_is_wanted": _only_what_is_wanted,
    "frozen": _frozen,
    "forward_after_updates": _forward_after_updates,
}
