"""Checks that an update does not depend on divisions or padding of its mini-batch, and that a refused one has no
effect.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean
from corerl.contracts.objective import ObjectiveOutput
from corerl.contracts.token_outputs import Output, TokenOutputs
from corerl.contracts.training_strategies import MicroBatching, TrainingStrategy, TrainingStrategyFactory
from corerl.errors import NonFiniteError
from corerl.registry import Selected
from corerl_testing.results import CheckFailed
from corerl_testing.tiny_model import tiny_model
from corerl_testing.training_reference import (
    FALLING,
    WHOLE,
    batch,
    build,
    copied_weights,
    distance,
    error,
    given_output,
    require_equal,
    step,
    tolerance,
)
from corerl_testing.trees import tree_batch

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
"""a step large against the rounding of the weights, whose length depends on the gradient's length"""

LINEAR: dict[str, Any] = {"optim": OptimConfig(lr=1e3, weight_decay=0.0, eps=1.0), "grad_clip": 1e6}
"""a step that is the gradient times a number, nearly: eps is large against the gradient"""

EXACT = 0.2
"""share of the tolerance of log-probs, 2e-6 on the CPU; sums of float32 in another order differ by 1.1e-6"""

Fault = Literal["a loss that is NaN", "a loss that is infinite", "a gradient that is infinite"]

FAULTS: tuple[Fault, ...] = ("a loss that is NaN", "a loss that is infinite", "a gradient that is infinite")

REFUSED: dict[MicroBatching, tuple[Fault, ...]] = {
    WHOLE: FAULTS,
    MicroBatching(max_sequences=2): FAULTS,
    MicroBatching(max_tokens=1): FAULTS[:1],
    MicroBatching(max_tokens=30): FAULTS[2:],
}
"""division of the mini-batch -> the micro-batchings to try"""


def words(cut: MicroBatching) -> str:
    """The limit of the division, as text."""
    return f"max_tokens={cut.max_tokens}" if cut.max_tokens else f"max_sequences={cut.max_sequences}"


@dataclass(frozen=True)
class _Counting:
    """Cross-entropy, and a metric that is a mean over rows with trained tokens."""

    wanted: ClassVar[frozenset[Output]] = frozenset({"log_probs", "entropy"})

    def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
        log_probs, entropy = given_output(outputs, "log_probs"), given_output(outputs, "entropy")
        assert batch.loss_weights is not None
        weights = batch.loss_weights.to(log_probs.dtype)
        loss = -((log_probs + 0.1 * entropy) * weights).sum()
        length = Mean(batch.response_mask.sum(), batch.response_mask.any(dim=1).sum())
        return ObjectiveOutput(loss, {"loss": loss.detach()}, {"length": length})


class _Same:
    """Compares updates with one update of a single batch."""

    def __init__(self, selected: Factory, experience: Experience, **changes: Any) -> None:
        strategy = build(selected, **changes)
        self.before = copied_weights(strategy)
        self.metrics = step(strategy, experience, _Counting())
        self.moved = copied_weights(strategy)

    def require(self, strategy: TrainingStrategy, experience: Experience, what: str, share: float = 1.0) -> None:
        """Fail unless an update of ``experience`` is equal, including its metrics.

        Args:
            share: of the tolerance.
        """
        given = step(strategy, experience, _Counting())
        off = distance(copied_weights(strategy), self.moved) / distance(self.before, self.moved)
        if not off <= share * tolerance(strategy):
            raise CheckFailed(f"{what} the update differs by {off:.2g} of itself")
        for name in ("loss", "length", "grad_norm", "lr"):
            if not math.isclose(given[name], self.metrics[name], rel_tol=10 * tolerance(strategy)):
                raise CheckFailed(f"{what} the metric {name} is {given[name]:.6g} and not {self.metrics[name]:.6g}")


def _micro_batches_change_nothing(selected: Factory) -> None:
    experience = batch(mode="seq-mean-token-mean")
    same = _Same(selected, experience, **FAR)
    for cut in CUTS:
        same.require(build(selected, micro_batching=cut, **FAR), experience, f"with {words(cut)}")


def _recomputing_changes_nothing(selected: Factory) -> None:
    """Gradient checkpointing saves memory and changes nothing else."""
    same = _Same(selected, batch(), **FAR)
    model = ModelConfig(path=str(tiny_model()), dtype="fp32", enable_gradient_checkpointing=True)
    for cut in (WHOLE, MicroBatching(max_sequences=2)):
        strategy = build(selected, model=model, micro_batching=cut, **FAR)
        same.require(strategy, batch(), f"with enable_gradient_checkpointing and {words(cut)}")


def _clipping_is_of_the_whole_gradient(selected: Factory) -> None:
    """The gradient is clipped after the sum over micro-batches, not in each of them."""
    experience = batch(mode="seq-mean-token-mean")
    clipped = {**FAR, "grad_clip": 0.05}
    same = _Same(selected, experience, **clipped)
    for cut in CUTS:
        strategy = build(selected, micro_batching=cut, **clipped)
        same.require(strategy, experience, f"with {words(cut)} and a gradient that is clipped")


def _masked_rows_change_nothing(selected: Factory) -> None:
    """A row whose mask is empty has no loss weights."""
    kept = torch.tensor([0, 1, 3, 5, 6])
    with_rows, without = batch(), batch()
    with_rows.response_mask[[2, 4]] = False
    assert with_rows.loss_weights is not None
    with_rows.loss_weights[[2, 4]] = 0.0
    same = _Same(selected, without.select(kept), **FAR)
    for cut in (WHOLE, MicroBatching(max_sequences=2), MicroBatching(max_tokens=30)):
        strategy = build(selected, micro_batching=cut, **FAR)
        same.require(strategy, with_rows, f"with rows without a true mask and {words(cut)}")


def _padding_changes_nothing(selected: Factory) -> None:
    """Columns to the right of every row, with any tokens."""
    experience, wide = batch(), _widened(batch())
    strategy = build(selected)
    narrow = given_output(strategy.forward(experience, {"log_probs"}), "log_probs")
    outputs = given_output(strategy.forward(wide, {"log_probs"}), "log_probs")
    off = (
        (outputs[:, : narrow.shape[1]] - narrow).abs().max() if outputs.shape == wide.response_mask.shape else math.nan
    )
    if not (off <= tolerance(strategy) and not outputs[:, narrow.shape[1] :].any()):
        raise CheckFailed(
            f"columns of padding change log_probs by {off:.2g}, or are not 0 in log_probs {tuple(outputs.shape)}"
        )
    same = _Same(selected, experience, **FAR)
    for cut in (WHOLE, MicroBatching(max_sequences=2)):
        same.require(build(selected, micro_batching=cut, **FAR), wide, f"with columns of padding and {words(cut)}")


def _common_prefixes_change_nothing(selected: Factory) -> None:
    """Rows that begin alike in one micro-batch, beside each row in a micro-batch of its own."""
    alone, wanted = MicroBatching(max_sequences=1), _Counting.wanted
    for seed in range(2):
        experience = tree_batch(seed)
        expected = build(selected, micro_batching=alone).forward(experience, wanted)
        same = _Same(selected, experience, micro_batching=alone, **LINEAR)
        for cut in (WHOLE, MicroBatching(max_sequences=3), MicroBatching(max_tokens=40)):
            strategy, what = build(selected, micro_batching=cut, **LINEAR), f"with common prefixes and {words(cut)}"
            given = strategy.forward(experience, wanted)
            for name in sorted(wanted):
                off = error(given_output(given, name), given_output(expected, name))
                if not off <= EXACT * tolerance(strategy):
                    raise CheckFailed(f"{what} {name} differs by up to {off:.2g} from that of each row alone")
            same.require(strategy, experience, what, EXACT)


@dataclass(frozen=True)
class _CountingUnits(_Counting):
    """The same with a metric whose count is the number of micro-batches of each unit, in sum."""

    def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
        output = super().__call__(outputs, batch)
        units = len(set(batch.group_ids[batch.response_mask.any(dim=1)].tolist()))
        return dataclasses.replace(output, metrics={**output.metrics, "units": Mean(0.0, units)})


def _units_stay_together(selected: Factory) -> None:
    """Rows of equal ``unit_ids``, such as both responses of a preference, are in one micro-batch."""
    experience = batch(mode="seq-mean-token-mean")
    same = _Same(selected, experience, **FAR)
    experience.group_ids = experience.unit_ids = torch.arange(len(experience)) // 2
    units = int(experience.unit_ids.max()) + 1
    for cut in (CUTS[0], CUTS[2], CUTS[4]):
        strategy, what = build(selected, micro_batching=cut, **FAR), f"with {words(cut)}"
        counted = float(strategy.update(experience, _CountingUnits())["units"].count)
        if counted != units:
            raise CheckFailed(f"{what} the {units} units are in {counted:g} parts: micro-batches must keep them whole")
        same.require(build(selected, micro_batching=cut, **FAR), experience, what)


def _widened(experience: Experience, columns: int = 5) -> Experience:
    """The same rows with more columns on the right."""

    def widen(name: str, tensor: Tensor) -> Tensor:
        if tensor.dim() < 2:
            return tensor
        more = tensor.new_full((len(tensor), columns), 9 if name == "input_ids" else 0)
        return torch.cat([tensor, more], dim=1)

    return experience.map(widen)


@dataclass(frozen=True)
class _Poisoned:
    """Cross-entropy that is not finite in rows whose advantages are 1."""

    how: Fault
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
    """Two refused updates in a row, between two applied ones: the second applied one is unaffected."""
    experience = batch()
    bad = (1, 5)
    experience.advantages = torch.zeros(experience.response_mask.shape)
    experience.advantages[list(bad)] = 1.0
    for cut, faults in REFUSED.items():
        untouched = build(selected, optim=FALLING, micro_batching=cut)
        step(untouched, batch(1))
        expected = step(untouched, batch(2))
        for how in faults:
            strategy = build(selected, optim=FALLING, micro_batching=cut)
            step(strategy, batch(1))
            before = copied_weights(strategy)
            for _ in range(2):
                _refused(functools.partial(strategy.update, experience, _Poisoned(how)), how, bad)
            require_equal(copied_weights(strategy), before, f"after {how} and NonFiniteError")
            given = step(strategy, batch(2))
            when = f"in the update after one with {how}, with {words(cut)}"
            if given["lr"] != expected["lr"]:
                raise CheckFailed(f"{when}: the learning rate is {given['lr']:g} and not {expected['lr']:g}")
            require_equal(copied_weights(strategy), copied_weights(untouched), when)


def _refused(update: Callable[[], object], how: str, bad: tuple[int, ...]) -> None:
    try:
        update()
    except NonFiniteError as error:
        if sorted(error.rows) != list(bad):
            raise CheckFailed(f"rows {bad} have {how}, and NonFiniteError names {tuple(error.rows)}") from error
        return
    raise CheckFailed(f"an update with {how} was taken: it must raise NonFiniteError")


PARTITIONS: dict[str, Callable[[Factory], None]] = {
    "micro_batches_change_nothing": _micro_batches_change_nothing,
    "recomputing_changes_nothing": _recomputing_changes_nothing,
    "clipping_is_of_the_whole_gradient": _clipping_is_of_the_whole_gradient,
    "masked_rows_change_nothing": _masked_rows_change_nothing,
    "padding_changes_nothing": _padding_changes_nothing,
    "common_prefixes_change_nothing": _common_prefixes_change_nothing,
    "units_stay_together": _units_stay_together,
    "non_finite": _non_finite,
}
