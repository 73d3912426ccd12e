"""Checks of training strategies with a value head."""

from collections.abc import Callable

import torch

from corerl.contracts.config import OptimConfig
from corerl.contracts.experience import Experience
from corerl.contracts.training_strategies import MicroBatching, TrainingStrategyFactory
from corerl.registry import Selected
from corerl_testing.results import CheckFailed, CheckSkipped
from corerl_testing.tiny_model import reference, tiny_model
from corerl_testing.training_partitions import words
from corerl_testing.training_reference import SQUARED_ERROR, batch, build, copied_weights, given_output, tolerance

Factory = Selected[TrainingStrategyFactory]


def _critic_batch() -> Experience:
    experience = batch()
    generator = torch.Generator().manual_seed(1)
    experience.returns = 3 + torch.randn(experience.response_mask.shape, generator=generator)
    experience.values = torch.zeros(experience.response_mask.shape)
    return experience


def _values(selected: Factory) -> None:
    """One finite number for each response token, which depends only on the tokens before it."""
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


def _head_follows_the_seed(selected: Factory) -> None:
    """Values of new critics depend only on the seed, not on earlier random numbers or models."""
    built = []
    with torch.random.fork_rng(devices=[]):
        for noise, seed, before in ((1, 4, False), (2, 4, True), (3, 5, False)):
            torch.manual_seed(noise)
            if before:
                build(selected, head="value", seed=9)
                build(selected)
            critic = build(selected, head="value", seed=seed)
            built.append(given_output(critic.forward(batch(), {"values"}), "values"))
    if not torch.equal(built[0], built[1]):
        raise CheckFailed("two new critics with the same seed have other values: the head is drawn from the seed alone")
    if torch.equal(built[0], built[2]):
        raise CheckFailed("two new critics with seeds 4 and 5 have the same values")


def _body_is_the_models(selected: Factory) -> None:
    """A new critic differs from the model in model.path only by its head."""
    true = reference(tiny_model()).state_dict()
    found = 0
    for name, weight in copied_weights(build(selected, head="value")).items():
        if name in true and "lm_head" not in name:
            found += 1
            if not torch.equal(weight.double(), true[name]):
                raise CheckFailed(f"the weight '{name}' of a new critic is not the one that model.path holds")
    if not found:
        raise CheckSkipped("its critic's weights have other names than the model's")


def _values_do_not_depend_on_the_batch(selected: Factory) -> None:
    """A row's values do not depend on other rows."""
    whole = build(selected, head="value")
    together = given_output(whole.forward(batch(), {"values"}), "values")
    for cut in (MicroBatching(max_sequences=1), MicroBatching(max_tokens=30)):
        strategy = build(selected, head="value", micro_batching=cut)
        given = given_output(strategy.forward(batch(), {"values"}), "values")
        off = float((given - together).abs().max())
        if not off <= tolerance(whole):
            raise CheckFailed(f"with {words(cut)} values are up to {off:.2g} off those of one piece")


CRITICS: dict[str, Callable[[Factory], None]] = {
    "values": _values,
    "values_are_learned": _values_are_learned,
    "head_follows_the_seed": _head_follows_the_seed,
    "body_is_the_models": _body_is_the_models,
    "values_do_not_depend_on_the_batch": _values_do_not_depend_on_the_batch,
}
