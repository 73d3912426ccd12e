"""Checks of a training strategy's updates, each compared with the same update by formulas."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.losses import LossOutput, masked_mean
from corerl.contracts.objective import Objective, ObjectiveOutput
from corerl.contracts.policy_losses import PolicyLossInputs
from corerl.contracts.token_outputs import Output, TokenOutputs
from corerl.contracts.training_strategies import TrainingStrategyFactory
from corerl.objective import PolicyObjective, loss_weights
from corerl.registry import Selected
from corerl_testing.results import CheckFailed
from corerl_testing.tiny_model import PAD, VOCABULARY, reference, tiny_model
from corerl_testing.training_reference import (
    OPTIM,
    Reference,
    batch,
    build,
    copied_weights,
    error,
    given_output,
    step,
    tolerance,
    true_outputs,
)
from corerl_testing.vocabulary_term import VocabularyObjective, VocabularyTerm
from corerl_torch.vocabulary import COLUMN, column

Factory = Selected[TrainingStrategyFactory]

OUTPUTS: tuple[Output, ...] = ("log_probs", "entropy", "sum_pi_squared", "vocabulary_log_probs")

LONG = dataclasses.replace(OPTIM, eps=1e-2, betas=[0.7, 0.95])
"""a step whose length depends on the gradient's length, not only on its direction"""


def agrees(
    selected: Factory,
    optim: OptimConfig,
    grad_clip: float = 100.0,
    *,
    batches: Sequence[Experience] = (),
    objective: Objective | None = None,
    temperature: float = 1.0,
    tied: bool = True,
    what: str = "",
) -> None:
    """Compare updates with AdamW by formulas; weights agree to 1 % of one step's change."""
    strategy = build(selected, optim=optim, grad_clip=grad_clip, temperature=temperature, tied=tied)
    true = Reference(optim, grad_clip, temperature=temperature, tied=tied)
    for number, experience in enumerate(batches or [batch(number) for number in range(3)]):
        expected, metrics = true.step(experience, objective), step(strategy, experience, objective)
        for name, value in {**expected, "lr": optim.lr}.items():
            given = metrics.get(name, math.nan)
            if not math.isclose(given, value, rel_tol=10 * tolerance(strategy), abs_tol=tolerance(strategy)):
                raise CheckFailed(
                    f"update {number + 1}{what} has the metric {name}={given:.6g}, and by hand {value:.6g}"
                )
        for name, weight in copied_weights(strategy).items():
            off = (weight - true.parameters[name]).abs().max().item()
            if not off <= 1e-2 * optim.lr:
                raise CheckFailed(
                    f"after update {number + 1}{what} the weight '{name}' is up to {off:.2g} off AdamW by hand "
                    f"(lr={optim.lr:g}, weight_decay={optim.weight_decay:g}, grad_clip={grad_clip:g})"
                )


def _update_is_adamw(selected: Factory) -> None:
    agrees(selected, OPTIM)


def _untied_update_is_adamw(selected: Factory) -> None:
    agrees(selected, OPTIM, tied=False, what=" of an untied model")


def _gradient_clipping(selected: Factory) -> None:
    agrees(selected, dataclasses.replace(OPTIM, eps=1e-3), grad_clip=0.02)


def _temperature_in_updates(selected: Factory) -> None:
    for temperature in (0.5, 2.0):
        agrees(selected, LONG, temperature=temperature, what=f" at temperature {temperature:g}")


def _every_weight_is_trained(selected: Factory) -> None:
    """Norms and biases also change, by AdamW's change."""
    optim = dataclasses.replace(OPTIM, weight_decay=0.0)
    for tied in (True, False):
        strategy, true = build(selected, optim=optim, tied=tied), Reference(optim, 1.0, tied=tied)
        before = copied_weights(strategy)
        true.step(batch())
        step(strategy, batch())
        for name, weight in copied_weights(strategy).items():
            wanted = float((true.parameters[name].detach() - before[name]).norm())
            given = float((weight.double() - before[name]).norm())
            if not math.isclose(given, wanted, rel_tol=0.02):
                raise CheckFailed(
                    f"one update moved the weight '{name}' of the {'tied' if tied else 'untied'} model by {given:.3g}, "
                    f"and by hand it moves by {wanted:.3g}"
                )


def _masked_tokens_are_read(selected: Factory) -> None:
    """Untrained tokens in a response, such as a tool's, are inputs of later tokens."""
    experience = batch()
    experience.response_mask[:, 1::3] = False
    assert experience.loss_weights is not None
    experience.loss_weights = torch.where(experience.response_mask, experience.loss_weights, 0.0)
    agrees(selected, LONG, batches=[experience], what=" on responses with tokens that are not trained")


def _long_responses(selected: Factory) -> None:
    """Responses longer than the positions of one logits chunk, beside one without any token."""
    generator = torch.Generator().manual_seed(2)
    # transformers gives the embedding of the padding token no gradient; a strategy may do the same
    long = torch.randint(PAD, (1200,), generator=generator).tolist()
    experience = collate([[5, 6], [7], [8, 9, 10]], [long, [], [11]], [0, 0, 0])
    experience.loss_weights = loss_weights(experience.response_mask, "token-mean")
    agrees(selected, LONG, batches=[experience], what=" on responses of 1200 tokens, of none and of one")
    given = given_output(build(selected).forward(experience, {"log_probs"}), "log_probs")
    expected = true_outputs(reference(tiny_model()), experience, "log_probs", 1.0)
    off = max(error(given[row, : len(each)], each) for row, each in enumerate(expected) if len(each))
    if not off <= 1e-4 + tolerance(build(selected)):  # large positions have larger rounding errors
        raise CheckFailed(f"log_probs of responses of 1200 tokens, of none and of one are up to {off:.2g} off")


@dataclass(frozen=True)
class _Of:
    """The weighted sum of one output, with only that output's gradient."""

    output: Output

    @property
    def wanted(self) -> frozenset[Output]:
        return frozenset({self.output})

    def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
        terms = given_output(outputs, self.output)
        if self.output == "vocabulary_log_probs":
            terms = terms[..., ::3].square().mean(dim=-1)
        assert batch.loss_weights is not None
        loss = (terms * batch.loss_weights.to(terms.dtype)).sum()
        return ObjectiveOutput(loss, {"loss": loss.detach()})


def _gradient_of_each_output(selected: Factory) -> None:
    """Each output is differentiable, also at another temperature."""
    for output in OUTPUTS:
        agrees(
            selected, LONG, batches=[batch()], objective=_Of(output), temperature=0.7, what=f" on the {output} alone"
        )


def _pulled_up(inputs: PolicyLossInputs) -> LossOutput:
    """-ratio · advantage, weighted by the engine's log-probs."""
    assert inputs.rollout_log_probs is not None
    ratio = (inputs.log_probs - inputs.old_log_probs).exp()
    trust = (inputs.old_log_probs - inputs.rollout_log_probs).exp()
    above = (ratio.detach() > 1).to(ratio.dtype)
    return LossOutput(-ratio * inputs.advantages * trust, {"above": masked_mean(above, inputs.response_mask)})


def _k2(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return (log_probs - ref_log_probs) ** 2 / 2


def _forward_kl(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return (ref_log_probs.exp() * (ref_log_probs - log_probs)).sum(dim=-1)


def policy_batch(seed: int = 0) -> Experience:
    """A batch with random old log-probs, reference log-probs, advantages and so on."""
    experience = batch(seed)
    generator = torch.Generator().manual_seed(100 + seed)
    mask = experience.response_mask

    def random(*shape: int) -> Tensor:
        return torch.randn(*mask.shape, *shape, generator=generator)

    experience.old_log_probs, experience.ref_log_probs = random() - 5, random() - 5
    experience.rollout_log_probs = experience.old_log_probs + 0.1 * random()
    experience.rollout_weights = random().exp()
    experience.advantages = random()
    experience.columns[COLUMN] = column(experience, torch.log_softmax(random(VOCABULARY), dim=-1))
    return experience


def _policy_objectives(selected: Factory) -> None:
    """A policy loss with KL loss and entropy bonus: every column of the batch is matched to its row and token."""
    objectives: dict[str, Objective] = {
        "KL of the sampled tokens": PolicyObjective(_pulled_up, _k2, 0.3, entropy_coeff=0.2),
        "KL of the whole vocabulary": VocabularyObjective(_pulled_up, terms=[VocabularyTerm(_forward_kl, 0.3)]),
    }
    for name, objective in objectives.items():
        batches = [policy_batch(number) for number in range(2)]
        agrees(selected, LONG, batches=batches, objective=objective, temperature=0.8, what=f" with a {name}")


def _learning_rate_schedule(selected: Factory) -> None:
    optim = dataclasses.replace(OPTIM, lr_warmup_steps=2, lr_scheduler_type="linear", min_lr_ratio=0.5)
    rates = _rates(selected, optim, 7)
    top = rates.index(max(rates))
    rises = rates[: top + 1] == sorted(rates[: top + 1]) and rates[top:] == sorted(rates[top:], reverse=True)
    if not (rises and 0 < top <= 2 and math.isclose(rates[top], 1.0) and math.isclose(rates[-1], 0.5)):
        raise CheckFailed(f"two steps of warm-up and a line down to a half at step 6 gave the rates {_shown(rates)}")


def _shapes_of_schedules(selected: Factory) -> None:
    """Linear falls by equal steps; cosine is a half wave over the same steps; constant is constant."""
    kinds: tuple[Literal["constant", "linear", "cosine"], ...] = ("constant", "linear", "cosine")
    optims = {kind: dataclasses.replace(OPTIM, lr_scheduler_type=kind, min_lr_ratio=0.2) for kind in kinds}
    rates = {kind: _rates(selected, optim, 9) for kind, optim in optims.items()}
    progress = [min(1.0, number / 6) for number in range(9)]
    shapes = {
        "constant": [1.0] * 9,
        "linear": [1 - 0.8 * each for each in progress],
        "cosine": [0.2 + 0.8 * (1 + math.cos(math.pi * each)) / 2 for each in progress],
    }
    for kind in kinds:
        wanted = shapes[kind]
        if not all(math.isclose(*pair, abs_tol=1e-6) for pair in zip(rates[kind], wanted, strict=True)):
            raise CheckFailed(
                f"6 steps of the schedule {kind} down to a fifth gave the rates {_shown(rates[kind])}, and "
                f"{_shown(wanted)} are right"
            )


def _rates(selected: Factory, optim: OptimConfig, steps: int) -> list[float]:
    """The rates of ``steps`` steps in a run of six, as shares of ``lr``."""
    strategy = build(selected, optim=optim, total_steps=6)
    return [step(strategy, batch())["lr"] / optim.lr for _ in range(steps)]


def _shown(rates: Sequence[float]) -> str:
    return f"lr · ({', '.join(f'{rate:.3g}' for rate in rates)})"


def _small_steps_add_up_in_bf16(selected: Factory) -> None:
    """Compute in bf16 does not round trained weights: twenty steps below bf16 precision change them."""
    optim = dataclasses.replace(OPTIM, lr=1e-4, weight_decay=0.0)
    model = ModelConfig(path=str(tiny_model()), dtype="bf16")
    strategy, true = build(selected, optim=optim, model=model), Reference(optim, 1.0)
    before = copied_weights(strategy)
    start = {name: each.detach().clone() for name, each in true.parameters.items()}
    for _ in range(20):
        step(strategy, batch())
        true.step(batch())
    along = length = 0.0
    for name, weight in copied_weights(strategy).items():
        wanted = true.parameters[name].detach() - start[name]
        along += float(((weight.double() - before[name].double()) * wanted).sum())
        length += float(wanted.square().sum())
    if not 0.7 < along / length < 1.3:
        raise CheckFailed(
            f"20 updates with model.dtype=bf16 and lr=1e-4 moved the weights by {along / length:.2f} of what they "
            "move by in full precision: weights that are trained are kept in float32"
        )


UPDATES: dict[str, Callable[[Factory], None]] = {
    "update_is_adamw": _update_is_adamw,
    "untied_update_is_adamw": _untied_update_is_adamw,
    "every_weight_is_trained": _every_weight_is_trained,
    "gradient_clipping": _gradient_clipping,
    "temperature_in_updates": _temperature_in_updates,
    "gradient_of_each_output": _gradient_of_each_output,
    "policy_objectives": _policy_objectives,
    "masked_tokens_are_read": _masked_tokens_are_read,
    "long_responses": _long_responses,
    "learning_rate_schedule": _learning_rate_schedule,
    "shapes_of_schedules": _shapes_of_schedules,
    "small_steps_add_up_in_bf16": _small_steps_add_up_in_bf16,
}
