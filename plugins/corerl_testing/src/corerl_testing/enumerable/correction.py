"""Checks that a rollout corrector has the bias that it claims (:attr:`RolloutCorrector.claims`).

The advantages are those of the leave-one-out baseline, which is unbiased. ``unbiased``: the corrected gradient is the
factor times that of the expected score of the trainer's policy, when the samples are those of another policy.
``surrogate``: it is so if engine and trainer agree, and not otherwise. A claim of less than the truth fails too.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from corerl.contracts.advantage_estimators import AdvantageEstimator, AdvantageInputs, Advantages
from corerl.contracts.experience import Experience
from corerl.contracts.objective import LossTerm
from corerl.contracts.rollout_correctors import RolloutCorrector
from corerl.contracts.token_columns import TokenColumn
from corerl_testing.enumerable.claims import EPSILON, Comparison, expect_bias, expect_exact, true_gradient
from corerl_testing.enumerable.expectation import Update, estimated, expected_gradient, sampled
from corerl_testing.enumerable.games import GAMES
from corerl_testing.enumerable.objectives import objective
from corerl_testing.enumerable.points import Point
from corerl_testing.results import CheckSkipped, Run
from corerl_testing.tensors import expect

MISMATCH = 0.5
"""distance of the sampling policy from the trainer's, in logits"""

SIZE = 2
"""of a group"""


def corrector_checks(corrector: RolloutCorrector, terms: Sequence[LossTerm] = ()) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs.

    Args:
        terms: of the loss, that belong to the correction (hook ``loss_terms``).
    """
    yield "claims", partial(_check, corrector, terms)


def of_corrector(
    corrector: RolloutCorrector,
    terms: Sequence[LossTerm] = (),
    *,
    distance: float = MISMATCH,
    estimator: AdvantageEstimator | None = None,
) -> Iterator[Comparison]:
    """The corrected gradient beside that of the expected score, in each game with other scores than 0 and 1.

    Args:
        distance: of the policy that samples.
        estimator: None: the leave-one-out baseline.
    """
    update = Update(corrector=corrector, terms=terms, columns=top_tokens)
    for game in GAMES:
        if not game.binary:
            point = Point.of(game)
            groups = sampled(point.moved(distance), SIZE, old=point)
            found = expected_gradient(estimated(groups, estimator or leave_one_out, corrector), update)
            true = true_gradient(objective("expected score"), point, SIZE)
            yield Comparison(f"in the game '{game.name}'", SIZE, False, found, true)


def leave_one_out(inputs: AdvantageInputs) -> Advantages:
    """The score of a response, less the mean score of the others of its group."""
    scores = inputs.rewards.sum(dim=1, keepdim=True)
    same = (inputs.group_ids[:, None] == inputs.group_ids).to(scores.dtype)
    count = same.sum(dim=1, keepdim=True)
    advantages = torch.where(inputs.response_mask, (count * scores - same @ scores) / (count - 1), 0.0)
    return Advantages(advantages, advantages)


def top_tokens(batch: Experience, engine: Point, episodes: Tensor) -> Mapping[str, TokenColumn]:
    """Columns of an engine that records all its tokens as the most likely ones (``rollout.record``)."""
    rows, steps = batch.response_mask.nonzero(as_tuple=True)
    log_probs = engine.vocabulary_log_probs[episodes][rows, steps]
    counts = torch.zeros(batch.input_ids.shape, dtype=torch.int32)
    counts[rows, batch.prompt_lengths[rows] + steps] = log_probs.shape[1]
    token_ids = torch.arange(log_probs.shape[1], dtype=torch.int32).repeat(len(rows))
    return {"top_tokens": TokenColumn(token_ids, counts), "top_log_probs": TokenColumn(log_probs.flatten(), counts)}


def _check(corrector: RolloutCorrector, terms: Sequence[LossTerm]) -> None:
    claims = corrector.claims
    if claims is None:
        raise CheckSkipped('it declares no bias of the corrected gradient, such as claims = Claims("unbiased")')
    known = ("unbiased", "surrogate")
    expect(claims.bias in known, f"a corrector claims {' or '.join(known)}, not '{claims.bias}'")
    apart = list(of_corrector(corrector, terms))
    if claims.bias == "unbiased":
        expect_exact(apart, claims, EPSILON, ", when the samples are those of another policy")
        return
    expect_exact(list(of_corrector(corrector, terms, distance=0.0)), claims, EPSILON, ", if engine and trainer agree")
    expect_bias(apart, claims)
