"""Checks of training strategies, on a tiny model that plain transformers runs beside them.

Each check builds the model anew, on the CPU, or on a CUDA device where the strategy refuses the CPU (RequestError).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from corerl.batch.experience import Experience
from corerl.config.schema import OptimConfig
from corerl.errors import NonFiniteError
from corerl.objective import ObjectiveOutput
from corerl.registry.base import Selected
from corerl.registry.losses import Mean
from corerl.registry.training_strategies import MicroBatching, Output, TokenOutputs, TrainingStrategyFactory
from corerl.testing.results import CheckFailed, Run
from corerl.testing.tiny_model import reference, tiny_model
from corerl.testing.training_critics import CRITICS
from corerl.testing.training_lifecycle import LIFECYCLE
from corerl.testing.training_reference import (
    FALLING,
    OPTIM,
    Reference,
    batch,
    build,
    copied_weights,
    distance,
    error,
    given_output,
    require_equal,
    step,
    tolerance,
    true_outputs,
)

Factory = Selected[TrainingStrategyFactory]

CUTS = (
    MicroBatching(max_sequences=1),
    MicroBatching(max_sequences=2),
    MicroBatching(max_sequences=3),
    MicroBatching(max_tokens=1),
    MicroBatching(max_tokens=30),
    MicroBatching(max_tokens=1000),
)

FAR: dict[str, Any] = {"optim": OptimConfig(lr=1.0, weight_decay=0.0, eps=1e-2), "grad_clip": 1e6}
"""a step so long that the rounding of the weights is small beside it, whose length depends on the gradient's"""

OUTPUTS: tuple[Output, ...] = ("log_probs", "entropy", "sum_pi_squared", "vocabulary_log_probs")


def checks(selected: Factory) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    for output in OUTPUTS:
        yield output, functools.partial(_forward, selected, output, 1.0)
    for name, check in {**CHECKS, **CRITICS, **LIFECYCLE}.items():
        yield name, functools.partial(check, selected)


def _forward(selected: Factory, output: Output, temperature: float) -> None:
    """The output of each row is that of the row alone in plain transformers."""
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
                f"transformers, row by row, with {_words(cut)}"
            )


def _words(cut: MicroBatching) -> str:
    return f"max_tokens={cut.max_tokens}" if cut.max_tokens else f"max_sequences={cut.max_sequences}"


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
    """A model without an optimizer says the same as one that is trained."""
    outputs = [
        given_output(build(selected, frozen=frozen).forward(batch(), {"log_probs"}), "log_probs")
        for frozen in (True, False)
    ]
    if (outputs[0] - outputs[1]).abs().max() > tolerance(build(selected)):
        raise CheckFailed("the log-probs of a model with optim=None are not those of one that is trained")


def _agrees(selected: Factory, optim: OptimConfig, grad_clip: float) -> None:
    """Three updates, beside AdamW by hand; weights agree to 1 % of what one step moves them."""
    strategy = build(selected, optim=optim, grad_clip=grad_clip)
    true = Reference(optim, grad_clip)
    for number in range(3):
        expected, metrics = true.step(batch(number)), step(strategy, batch(number))
        for name, value in {**expected, "lr": optim.lr}.items():
            given = metrics.get(name, math.nan)
            if not math.isclose(given, value, rel_tol=10 * tolerance(strategy)):
                raise CheckFailed(f"update {number + 1} has the metric {name}={given:.6g}, and by hand {value:.6g}")
        for name, weight in copied_weights(strategy).items():
            off = (weight - true.parameters[name]).abs().max().item()
            if not off <= 1e-2 * optim.lr:
                raise CheckFailed(
                    f"after update {number + 1} the weight '{name}' is up to {off:.2g} off AdamW by hand "
                    f"(lr={optim.lr:g}, weight_decay={optim.weight_decay:g}, grad_clip={grad_clip:g})"
                )


def _update_is_adamw(selected: Factory) -> None:
    _agrees(selected, OPTIM, grad_clip=100.0)


def _gradient_clipping(selected: Factory) -> None:
    _agrees(selected, dataclasses.replace(OPTIM, eps=1e-3), grad_clip=0.02)


def _learning_rate_schedule(selected: Factory) -> None:
    optim = dataclasses.replace(OPTIM, lr_warmup_steps=2, lr_scheduler_type="linear", min_lr_ratio=0.5)
    strategy = build(selected, optim=optim, total_steps=6)
    rates = [step(strategy, batch())["lr"] / optim.lr for _ in range(7)]
    top = rates.index(max(rates))
    rises = rates[: top + 1] == sorted(rates[: top + 1]) and rates[top:] == sorted(rates[top:], reverse=True)
    if not (rises and 0 < top <= 2 and math.isclose(rates[top], 1.0) and math.isclose(rates[-1], 0.5)):
        shown = ", ".join(f"{rate:.3g}" for rate in rates)
        raise CheckFailed(f"two steps of warm-up and a line down to a half at step 6 gave the rates lr · ({shown})")


@dataclass(frozen=True)
class _Counting:
    """Cross-entropy, and metrics that are means over sequences."""

    wanted: ClassVar[frozenset[Output]] = frozenset({"log_probs", "entropy"})

    def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
        log_probs, entropy = given_output(outputs, "log_probs"), given_output(outputs, "entropy")
        assert batch.loss_weights is not None
        weights = batch.loss_weights.to(log_probs.dtype)
        loss = -((log_probs + 0.1 * entropy) * weights).sum()
        length = Mean(batch.response_lengths.sum(), batch.response_lengths.numel())
        return ObjectiveOutput(loss, {"loss": loss.detach()}, {"length": length})


def _micro_batches_change_nothing(selected: Factory) -> None:
    experience = batch(mode="seq-mean-token-mean")
    whole = build(selected, **FAR)
    before = copied_weights(whole)
    metrics = whole.update(experience, _Counting())
    moved = copied_weights(whole)
    for cut in CUTS:
        strategy = build(selected, micro_batching=cut, **FAR)
        given = strategy.update(experience, _Counting())
        off = distance(copied_weights(strategy), moved) / distance(before, moved)
        if not off <= tolerance(strategy):
            raise CheckFailed(f"with {_words(cut)} the update differs by {off:.2g} of itself from that of one piece")
        for name in ("loss", "length", "grad_norm"):
            if not math.isclose(given[name].value, metrics[name].value, rel_tol=10 * tolerance(strategy)):
                values = f"{given[name].value:.6g} and not {metrics[name].value:.6g}"
                raise CheckFailed(f"with {_words(cut)} the metric {name} is {values}")


def _masked_rows_change_nothing(selected: Factory) -> None:
    """A row whose mask is empty has no loss weights."""
    kept = torch.tensor([0, 1, 3, 5, 6])
    with_rows, without = batch(), batch()
    with_rows.response_mask[[2, 4]] = False
    assert with_rows.loss_weights is not None
    with_rows.loss_weights[[2, 4]] = 0.0
    strategies = [build(selected, **FAR), build(selected, **FAR)]
    before = copied_weights(strategies[0])
    step(strategies[0], with_rows)
    step(strategies[1], without.select(kept))
    weights = [copied_weights(strategy) for strategy in strategies]
    off = distance(weights[0], weights[1]) / distance(before, weights[1])
    if not off <= tolerance(strategies[0]):
        raise CheckFailed(f"rows without a true mask change the update by {off:.2g} of itself")


@dataclass(frozen=True)
class _Poisoned:
    """Cross-entropy, spoilt in the rows whose advantages are 1."""

    how: Literal["a loss that is NaN", "a loss that is infinite", "a gradient that is infinite"]
    wanted: ClassVar[frozenset[Output]] = frozenset({"log_probs"})

    def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
        log_probs = given_output(outputs, "log_probs")
        assert batch.loss_weights is not None and batch.advantages is not None
        bad = (batch.advantages == 1) & batch.response_mask
        terms = -log_probs * batch.loss_weights.to(log_probs.dtype)
        if self.how == "a gradient that is infinite":
            poison = torch.where(bad, log_probs - log_probs.detach(), 1.0).sqrt() - 1  # the slope of a root at 0
        else:
            poison = log_probs * torch.where(bad, math.nan if self.how.endswith("NaN") else math.inf, 0.0)
        return ObjectiveOutput(terms.sum() + torch.where(bad, poison, 0.0).sum())


def _non_finite(selected: Factory) -> None:
    experience = batch()
    bad = (1, 5)
    experience.advantages = torch.zeros(experience.response_mask.shape)
    experience.advantages[list(bad)] = 1.0
    untouched = build(selected, optim=FALLING)
    step(untouched, batch(1))
    for cut in (MicroBatching(max_sequences=100), MicroBatching(max_sequences=2)):
        for how in ("a loss that is NaN", "a loss that is infinite", "a gradient that is infinite"):
            strategy = build(selected, optim=FALLING, micro_batching=cut)
            before = copied_weights(strategy)
            _refused(functools.partial(strategy.update, experience, _Poisoned(how)), how, bad)
            require_equal(copied_weights(strategy), before, f"after {how} and NonFiniteError")
            if cut.max_sequences == 100:
                step(strategy, batch(1))
                require_equal(
                    copied_weights(strategy), copied_weights(untouched), f"in the update after one with {how}"
                )


def _refused(update: Callable[[], object], how: str, bad: tuple[int, ...]) -> None:
    try:
        update()
    except NonFiniteError as error:
        if sorted(error.rows) != list(bad):
            raise CheckFailed(f"rows {bad} have {how}, and NonFiniteError names {tuple(error.rows)}") from error
        return
    raise CheckFailed(f"an update with {how} was taken: it must raise NonFiniteError")


CHECKS: dict[str, Callable[[Factory], None]] = {
    "temperature": _temperature,
    "only_what_is_wanted": _only_what_is_wanted,
    "frozen": _frozen,
    "update_is_adamw": _update_is_adamw,
    "gradient_clipping": _gradient_clipping,
    "learning_rate_schedule": _learning_rate_schedule,
    "micro_batches_change_nothing": _micro_batches_change_nothing,
    "masked_rows_change_nothing": _masked_rows_change_nothing,
    "non_finite": _non_finite,
}
