"""Faults in an update's dependence on its parts, and in the effects of a refused update."""

import dataclasses
import threading

import torch

from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean
from corerl.contracts.objective import Objective, ObjectiveOutput
from corerl.contracts.token_outputs import TokenOutputs
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import NonFiniteError
from planted.training_strategies.wrapped import Seen, Strategy, planted

Metrics = dict[str, Mean]


class _ByItsWeights(Seen):
    def scale(self, batch: Experience) -> float:
        assert batch.loss_weights is not None
        return 1.0 / float(batch.loss_weights.sum())


class NormalisesEachMicroBatch(Strategy):
    """the loss is a mean over each micro-batch"""

    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        return super().update(mini_batch, _ByItsWeights(objective))


class _ByItsRows(Seen):
    def scale(self, batch: Experience) -> float:
        return 0.1 * len(batch)


class CountsMaskedRows(Strategy):
    """rows without trained tokens count in the loss's denominator"""

    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        return super().update(mini_batch, _ByItsRows(objective))


class MeansOverTheWidth(Strategy):
    """the loss is scaled by the width of the padded batch"""

    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        class Wide(Seen):
            def scale(self, batch: Experience) -> float:
                return 10.0 / mini_batch.response_mask.shape[1]

        return super().update(mini_batch, Wide(objective))


class NormOfThePadding(Strategy):
    """the metric grad_norm is divided by the rows, those without trained tokens included"""

    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        metrics = super().update(mini_batch, objective)
        return metrics | {"grad_norm": Mean(metrics["grad_norm"].value, len(mini_batch))}


class LastMicroBatchMetrics(Strategy):
    """metrics are those of the last micro-batch"""

    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        last: Metrics = {}

        class Watched(Seen):
            def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
                output = super().__call__(outputs, batch)
                last.update(output.metrics)
                return output

        return super().update(mini_batch, Watched(objective)) | last


class RecomputesWithoutEmbedding(Strategy):
    """gradient checkpointing ends at the first layer, whose input has no gradient"""

    def __init__(self, spec: StrategySpec) -> None:
        super().__init__(spec)
        if spec.model.enable_gradient_checkpointing:
            self.inner.model.get_input_embeddings().weight.register_hook(torch.zeros_like)


class ClipsEachMicroBatch(Strategy):
    """the gradient is clipped after every micro-batch"""

    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        strategy = self

        class Clipping(Seen):
            def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
                torch.nn.utils.clip_grad_norm_(strategy.inner.model.parameters(), strategy.spec.grad_clip)
                return super().__call__(outputs, batch)

        return super().update(mini_batch, Clipping(objective))


class _ByItsFirstTokens(Seen):
    def scale(self, batch: Experience) -> float:
        beginnings = {tuple(row) for row in batch.input_ids[:, :2].tolist()}
        return 1.0 + 1e-4 * (len(batch) - len(beginnings))


class SumsCommonTokensOnce(Strategy):
    """a token that several rows have in common gets the gradient of too many or too few of them"""

    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        return super().update(mini_batch, _ByItsFirstTokens(objective))


class TakesWhatIsNotFinite(Strategy):
    """an update that is not finite is passed over in silence"""

    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        try:
            return super().update(mini_batch, objective)
        except NonFiniteError:
            return {}


class NamesNoRows(Strategy):
    """the error of an update that is not finite names no rows"""

    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        try:
            return super().update(mini_batch, objective)
        except NonFiniteError as error:
            raise NonFiniteError(str(error)) from error


class _AfterRefusal(Strategy):
    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        try:
            return super().update(mini_batch, objective)
        except NonFiniteError:
            self.refused()
            raise

    def refused(self) -> None:
        raise NotImplementedError


class RaisesTooLate(_AfterRefusal):
    """a refused update has changed a weight"""

    def refused(self) -> None:
        with torch.no_grad():
            next(self.inner.model.parameters()).mul_(0.999)


class LowersTheRate(_AfterRefusal):
    """a refused update halves the learning rate"""

    def refused(self) -> None:
        for group in self.inner.optimizer.param_groups:
            group["lr"] /= 2


class SchedulesTheRefused(_AfterRefusal):
    """a refused update counts in the schedule"""

    def refused(self) -> None:
        self.inner.schedule.step()


class ForgetsMomentsWhenRefused(_AfterRefusal):
    """a refused update clears the optimizer's moments"""

    def refused(self) -> None:
        self.inner.optimizer.state.clear()


class KeepsTheGoodRowsGradient(_AfterRefusal):
    """a refused update that was cut by tokens leaves a gradient"""

    def refused(self) -> None:
        if self.spec.micro_batching.max_tokens is not None:
            for parameter in self.inner.model.parameters():
                parameter.grad = torch.full_like(parameter, 1e-3)


class SeparatesUnits(Strategy):
    """rows of a unit may be in different micro-batches"""

    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        return super().update(dataclasses.replace(mini_batch, unit_ids=None), objective)


class HangsWhenItIsCut(Strategy):
    """an update in several micro-batches waits for ever"""

    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        if self.spec.micro_batching != MicroBatching(max_sequences=100):
            threading.Event().wait()
        return super().update(mini_batch, objective)


FAULTS = [
    planted(NormalisesEachMicroBatch, "micro_batches_change_nothing", "with max_sequences=1 the update differs by"),
    planted(LastMicroBatchMetrics, "micro_batches_change_nothing", "with max_sequences=1 the metric length is"),
    planted(
        RecomputesWithoutEmbedding,
        "recomputing_changes_nothing",
        "with enable_gradient_checkpointing and max_sequences=100 the update differs by",
    ),
    planted(ClipsEachMicroBatch, "clipping_is_of_the_whole_gradient", "with max_sequences=1 and a gradient that is"),
    planted(CountsMaskedRows, "masked_rows_change_nothing", "max_sequences=100 the update differs by"),
    planted(NormOfThePadding, "masked_rows_change_nothing", "max_sequences=100 the metric grad_norm is"),
    planted(MeansOverTheWidth, "padding_changes_nothing", "with columns of padding and max_sequences=100 the update"),
    planted(
        SumsCommonTokensOnce,
        "common_prefixes_change_nothing",
        "with common prefixes and max_sequences=100 the update differs by",
    ),
    planted(SeparatesUnits, "units_stay_together", "with max_sequences=1 the 4 units are in 7 parts"),
    planted(TakesWhatIsNotFinite, "non_finite", "an update with a loss that is NaN was taken"),
    planted(NamesNoRows, "non_finite", "rows (1, 5) have a loss that is NaN, and NonFiniteError names ()"),
    planted(RaisesTooLate, "non_finite", "after a loss that is NaN and NonFiniteError: the weight '"),
    planted(
        LowersTheRate, "non_finite", "in the update after one with a loss that is NaN, with max_sequences=100: the"
    ),
    planted(SchedulesTheRefused, "non_finite", "with max_sequences=100: the learning rate is"),
    planted(ForgetsMomentsWhenRefused, "non_finite", "in the update after one with a loss that is NaN, with max_seq"),
    planted(KeepsTheGoodRowsGradient, "non_finite", "with max_tokens=1: the weight '"),
    planted(HangsWhenItIsCut, "micro_batches_change_nothing", "update() had not ended after", patience=0.02),
]
