"""Checks of training strategies with a value head."""

from collections.abc import Callable

import torch

from corerl.batch.experience import Experience
from corerl.config.schema import OptimConfig
from corerl.registry.base import Selected
from corerl.registry.training_strategies import MicroBatching, TrainingStrategyFactory
from corerl.testing.results import CheckFailed
from corerl.testing.training_reference import SQUARED_ERROR, batch, build, given_output, tolerance

Factory = Selected[TrainingStrategyFactory]


def _critic_batch() -> Experience:
    experience = batch()
    generator = torch.Generator().manual_seed(1)
    experience.returns = 3 + torch.randn(experience.response_mask.shape, generator=generator)
    experience.values = torch.zeros(experience.response_mask.shape)
    return experience


def _values(selected: Factory) -> None:
    """One finite number for each response token, of what comes before it."""
    strategy = build(selected, head="value")
    experience = batch()
    values = given_output(strategy.forward(experience, {"values"}), "values")
    if values.shape != experience.response_mask.shape or values.dtype != torch.float32 or not values.isfinite().all():
        raise CheckFailed(f"values are {tuple(values.shape)} {values.dtype}, or not all finite")
    if values[~experience.response_mask].any():
        raise CheckFailed("values are not 0 outside the responses")
    row, column = 5, 4
    experience.input_ids[row, experience.prompt_lengths[row] + column] = 65
    changed = (given_output(strategy.forward(experience, {"values"}), "values") - values).abs() > tolerance(strategy)
    expected = torch.zeros_like(changed)
    expected[row, column + 1 : int(experience.response_lengths[row])] = True
    if (changed & ~expected).any():
        raise CheckFailed(f"another token at place {column} changed the value before it, or that of another response")
    if not changed[row, column + 1]:
        raise CheckFailed(f"another token at place {column} did not change the value after it")


def _values_are_learned(selected: Factory) -> None:
    strategy = build(selected, head="value", optim=OptimConfig(lr=1e-2), micro_batching=MicroBatching(max_sequences=3))
    experience = _critic_batch()
    losses = [strategy.update(experience, SQUARED_ERROR)["vf_loss"].value for _ in range(60)]
    if not losses[-1] < losses[0] / 4:
        raise CheckFailed(
            f"60 updates toward fixed returns took the squared error from {losses[0]:.3g} to {losses[-1]:.3g}"
        )


CRITICS: dict[str, Callable[[Factory], None]] = {"values": _values, "values_are_learned": _values_are_learned}
