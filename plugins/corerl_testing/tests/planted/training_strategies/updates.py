"""Faults in an update."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean
from corerl.contracts.objective import Objective, ObjectiveOutput
from corerl.contracts.token_outputs import TokenOutputs, Wanted
from corerl.contracts.training_strategies import StrategySpec
from planted.training_strategies.wrapped import Seen, Strategy, planted

Metrics = dict[str, Mean]


def _optim(spec: StrategySpec, **changes: Any) -> StrategySpec:
    return spec if spec.optim is None else replace(spec, optim=replace(spec.optim, **changes))


class NoClipping(Strategy):
    """gradients are not clipped"""

    def asked(self, spec: StrategySpec) -> StrategySpec:
        return replace(spec, grad_clip=1e9)


class NoWeightDecay(Strategy):
    """weights do not decay"""

    def asked(self, spec: StrategySpec) -> StrategySpec:
        return _optim(spec, weight_decay=0.0)


class DecaysEverything(Strategy):
    """norms and biases decay too"""

    def __init__(self, spec: StrategySpec) -> None:
        super().__init__(spec)
        if spec.optim is not None:
            self.inner.optimizer.param_groups[1]["weight_decay"] = 0.5


class SquaredBeta(Strategy):
    """the second moment decays by beta1"""

    def asked(self, spec: StrategySpec) -> StrategySpec:
        return spec if spec.optim is None else _optim(spec, betas=[spec.optim.betas[0]] * 2)


class DefaultBetas(Strategy):
    """betas are 0.9 and 0.999 for every config"""

    def asked(self, spec: StrategySpec) -> StrategySpec:
        return _optim(spec, betas=[0.9, 0.999])


class _ClipsAnew(Strategy):
    def __init__(self, spec: StrategySpec) -> None:
        super().__init__(replace(spec, grad_clip=1e9))
        self.limit = spec.grad_clip
        if spec.optim is not None:
            take_step = self.inner._step

            def step() -> float:
                self.clip([each.grad for each in self.inner.model.parameters() if each.grad is not None])
                return float(take_step())

            self.inner._step = step

    def clip(self, gradients: list[Tensor]) -> None:
        raise NotImplementedError


class NormalisesTheGradient(_ClipsAnew):
    """a gradient that is shorter than grad_clip is made as long"""

    def clip(self, gradients: list[Tensor]) -> None:
        norm = torch.nn.utils.get_total_norm(gradients)
        for each in gradients:
            each.mul_(self.limit / norm)


class ClipsEachTensor(_ClipsAnew):
    """the gradient of each tensor is clipped by itself"""

    def clip(self, gradients: list[Tensor]) -> None:
        for each in gradients:
            each.mul_((self.limit / each.norm()).clamp(max=1.0))


class FrozenNorms(Strategy):
    """norms are not trained"""

    frozen: Callable[[str], bool] = staticmethod(lambda name: "norm" in name)

    def __init__(self, spec: StrategySpec) -> None:
        super().__init__(spec)
        for name, parameter in self.inner.model.named_parameters():
            if self.frozen(name):
                parameter.register_hook(torch.zeros_like)


class FrozenBiases(FrozenNorms):
    """biases are not trained"""

    frozen = staticmethod(lambda name: name.endswith("bias"))


class FrozenOutput(FrozenNorms):
    """an output layer of its own is not trained"""

    frozen = staticmethod(lambda name: name.startswith("lm_head"))


class NoWarmUp(Strategy):
    """the rate does not warm up"""

    def asked(self, spec: StrategySpec) -> StrategySpec:
        return _optim(spec, lr_warmup_steps=0)


class CosineIsALine(Strategy):
    """the cosine schedule is a line"""

    def asked(self, spec: StrategySpec) -> StrategySpec:
        cosine = spec.optim is not None and spec.optim.lr_scheduler_type == "cosine"
        return _optim(spec, lr_scheduler_type="linear") if cosine else spec


class UpdatesAtOne(Strategy):
    """an update uses the log-probs at temperature 1"""

    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        own, self.inner.token_model.temperature = self.inner.token_model.temperature, 1.0
        try:
            return super().update(mini_batch, objective)
        finally:
            self.inner.token_model.temperature = own


class LrOfTheNextStep(Strategy):
    """the metric lr is that of the next step"""

    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        metrics = super().update(mini_batch, objective)
        return metrics | {"lr": Mean(float(self.inner.schedule.get_last_lr()[0]), 1.0)}


class _Detached(Seen):
    def outputs(self, outputs: TokenOutputs) -> TokenOutputs:
        return outputs._replace(entropy=None if outputs.entropy is None else outputs.entropy.detach())


class EntropyWithoutGradient(Strategy):
    """the entropy has no gradient"""

    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        return super().update(mini_batch, _Detached(_with_any_gradient(objective)))


def _with_any_gradient(objective: Objective) -> Objective:
    """The objective with a gradient of 0, so that there is one to walk back."""

    class Plus:
        wanted: frozenset[Wanted] = frozenset({*objective.wanted, "log_probs"})

        def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
            output = objective(outputs, batch)
            assert outputs.log_probs is not None
            return replace(output, loss=output.loss + 0 * outputs.log_probs.sum())

    return Plus()


class _Turned(Seen):
    def batch(self, batch: Experience) -> Experience:
        if batch.advantages is None:
            return batch
        return replace(batch, advantages=batch.advantages.flip(0))


class AdvantagesOfAnotherRow(Strategy):
    """the advantages of a micro-batch are not ordered as its rows are"""

    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        return super().update(mini_batch, _Turned(objective))


class _WithoutWeights(Seen):
    def batch(self, batch: Experience) -> Experience:
        return replace(batch, rollout_weights=None)


class DropsTheCorrection(Strategy):
    """correction weights of the batch do not reach the objective"""

    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        return super().update(mini_batch, _WithoutWeights(objective))


class HidesMaskedTokens(Strategy):
    """tokens that are not trained are not read either"""

    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        hidden = mini_batch.input_ids.clone()
        for row, start in enumerate(mini_batch.prompt_lengths.tolist()):
            for column in range(int(mini_batch.response_lengths[row])):
                if not mini_batch.response_mask[row, column]:
                    hidden[row, start + column] = 0
        return super().update(replace(mini_batch, input_ids=hidden), objective)


class Bf16Weights(Strategy):
    """with model.dtype=bf16 the weights that are trained are rounded to it"""

    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        metrics = super().update(mini_batch, objective)
        if self.spec.model.dtype == "bf16":
            with torch.no_grad():
                for parameter in self.inner.model.parameters():
                    parameter.copy_(parameter.bfloat16())
        return metrics


class NormAfterClipping(Strategy):
    """the metric grad_norm is that of the clipped gradient"""

    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        metrics = super().update(mini_batch, objective)
        return metrics | {"grad_norm": Mean(min(metrics["grad_norm"].value, self.spec.grad_clip), 1.0)}


class ChangesTheBatch(Strategy):
    """an update changes the batch's loss weights in place"""

    def update(self, mini_batch: Experience, objective: Objective) -> Metrics:
        assert mini_batch.loss_weights is not None
        mini_batch.loss_weights *= 2
        return super().update(mini_batch, objective)


class NeverUpdatesCritics(Strategy):
    """an update of a critic takes no step"""

    def __init__(self, spec: StrategySpec) -> None:
        super().__init__(spec)
        if spec.head == "value":
            self.inner._step = lambda: 0.0


FAULTS = [
    planted(NoWeightDecay, "update_is_adamw", "after update 1 the weight 'model.embed_tokens.weight' is up to"),
    planted(DecaysEverything, "update_is_adamw", "off AdamW by hand (lr=0.01, weight_decay=0.5"),
    planted(SquaredBeta, "update_is_adamw", "off AdamW by hand"),
    planted(DefaultBetas, "temperature_in_updates", "after update 2 at temperature 0.5 the weight"),
    planted(NormalisesTheGradient, "temperature_in_updates", "after update 1 at temperature 0.5 the weight"),
    planted(ClipsEachTensor, "gradient_clipping", "off AdamW by hand (lr=0.01, weight_decay=0.5, grad_clip=0.02)"),
    planted(FrozenNorms, "every_weight_is_trained", "layernorm.weight' of the tied model by 0, and by hand it moves"),
    planted(FrozenBiases, "every_weight_is_trained", "bias' of the tied model by 0, and by hand it moves by"),
    planted(FrozenOutput, "untied_update_is_adamw", "of an untied model has the metric grad_norm"),
    planted(NoClipping, "gradient_clipping", "off AdamW by hand (lr=0.01, weight_decay=0.5, grad_clip=0.02)"),
    planted(NormAfterClipping, "gradient_clipping", "update 1 has the metric grad_norm=0.02, and by hand"),
    planted(NoWarmUp, "learning_rate_schedule", "gave the rates lr · (1, "),
    planted(CosineIsALine, "shapes_of_schedules", "6 steps of the schedule cosine down to a fifth gave the rates"),
    planted(LrOfTheNextStep, "learning_rate_schedule", "gave the rates lr · (1, 1, "),
    planted(UpdatesAtOne, "temperature_in_updates", "update 1 at temperature 0.5 has the metric loss"),
    planted(
        EntropyWithoutGradient, "gradient_of_each_output", "update 1 on the entropy alone has the metric grad_norm"
    ),
    planted(AdvantagesOfAnotherRow, "policy_objectives", "with a KL of the sampled tokens has the metric pg_loss"),
    planted(DropsTheCorrection, "policy_objectives", "with a KL of the sampled tokens has the metric pg_loss"),
    planted(
        HidesMaskedTokens, "masked_tokens_are_read", "on responses with tokens that are not trained has the metric"
    ),
    planted(Bf16Weights, "small_steps_add_up_in_bf16", "weights that are trained are kept in float32"),
    planted(ChangesTheBatch, "batch_unchanged", "changed the batch's loss_weights"),
    planted(NeverUpdatesCritics, "values_are_learned", "60 updates toward fixed returns took the squared error from"),
]
