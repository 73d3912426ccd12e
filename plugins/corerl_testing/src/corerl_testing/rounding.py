"""An on-policy update must not depend on rounding.

In the first update of a step log pi and log pi_old differ only by rounding, which depends on the division of the
mini-batch into micro-batches, on padding and on packing. A term with a kink at log pi = log pi_old, such as |d|, turns
this rounding into gradient.
"""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.kl_types import KLType
from corerl.contracts.policy_losses import LossOutput, PolicyLoss, PolicyLossInputs
from corerl.objective import PolicyObjective
from corerl.registry import Owner, Registries, Selected
from corerl_testing.invariance import Setting, setting
from corerl_testing.results import CheckSkipped
from corerl_testing.tensors import expect, generator
from corerl_testing.vocabulary_term import VocabularyTerm
from corerl_torch.vocabulary import COLUMN, column

NOISE = 1e-7
MOST = 1e-5
"""largest allowed change of a mini-batch's gradient by the noise, relative to its norm"""

COEFFICIENT = 0.001
"""coefficient of the KL term, the config's default"""


def policy_loss(selected: Selected[PolicyLoss]) -> None:
    """Noise in log pi_old."""
    change = _change(setting(selected), ("old_log_probs",), ("old_log_probs",))
    expect(
        change <= MOST,
        f"noise of {NOISE:g} in old log-probs changes an on-policy update by {change:.2g} (relative): the gradient has "
        "a step where the policy is still the old one, as that of |log pi - log pi_old| has",
    )


def kl_type(selected: Selected[KLType]) -> None:
    """Noise in log pi_ref, with policy and reference the same model; a kink is reported.

    Raises:
        CheckFailed: the gradient is not finite if both agree.
        CheckSkipped: the noise changes the update by more than ``MOST``.
    """
    case = setting(Selected(Registries().policy_losses.entry("surrogate", surrogate, Owner("corerl-testing"))))
    if "logits" in selected.entry.needs:
        change = _change_of_vocabulary(case, selected.load())
    else:
        on_policy = Setting(case.policy, PolicyObjective(surrogate, selected.load(), COEFFICIENT), case.batch)
        change = _change(on_policy, ("old_log_probs", "ref_log_probs"), ("ref_log_probs",))
    expect(math.isfinite(change), "where policy and reference agree its gradient is not finite")
    if change > MOST:
        raise CheckSkipped(
            f"noise of {NOISE:g} in reference log-probs changes the first update by {change:.2g} (relative) with a "
            f"coefficient of {COEFFICIENT:g}: its gradient has a step where policy and reference agree, so as a loss "
            "it makes that update depend on rounding"
        )


def surrogate(inputs: PolicyLossInputs) -> LossOutput:
    """The policy gradient, -A rho."""
    return LossOutput(-inputs.advantages * (inputs.log_probs - inputs.old_log_probs).exp())


def _change(case: Setting, equal: tuple[str, ...], noisy: tuple[str, ...]) -> float:
    """Relative change of the gradient by noise in ``noisy``, with ``equal`` set to the policy's own log-probs."""
    with torch.no_grad():
        log_probs = case.policy(case.batch).log_probs
    assert log_probs is not None
    exact = dict.fromkeys(equal, log_probs)
    whole = [torch.arange(len(case.batch))]
    want = _with(case, exact).gradient(whole)
    changes = []
    for seed in range(3):
        rounded = {name: _noisy(exact.get(name, getattr(case.batch, name)), seed) for name in noisy}
        got = _with(case, {**exact, **rounded}).gradient(whole)
        changes.append(float((got - want).norm() / want.norm().clamp(min=1e-12)))
    return changes[0] if math.isnan(changes[0]) else max(changes)


def _change_of_vocabulary(case: Setting, kl_type: KLType) -> float:
    """The same, by noise in the reference's log-probs of the vocabulary."""
    with torch.no_grad():
        outputs = case.policy(case.batch)
    assert outputs.log_probs is not None and outputs.vocabulary_log_probs is not None
    exact = outputs.vocabulary_log_probs
    objective = PolicyObjective(surrogate, terms=[VocabularyTerm(kl_type, COEFFICIENT)])

    def gradient(reference: Tensor) -> Tensor:
        columns = {COLUMN: column(case.batch, reference)}
        batch = dataclasses.replace(case.batch, old_log_probs=outputs.log_probs, columns=columns)
        return Setting(case.policy, objective, batch).gradient([torch.arange(len(batch))])

    want = gradient(exact)
    got = [gradient(_noisy(exact, seed)) for seed in range(3)]
    changes = [float((each - want).norm() / want.norm().clamp(min=1e-12)) for each in got]
    return changes[0] if math.isnan(changes[0]) else max(changes)


def _with(case: Setting, tensors: dict[str, Any]) -> Setting:
    return dataclasses.replace(case, batch=dataclasses.replace(case.batch, **tensors))


def _noisy(tensor: Tensor, seed: int) -> Tensor:
    return tensor + NOISE * torch.randn(tensor.shape, generator=generator(seed), dtype=tensor.dtype)
