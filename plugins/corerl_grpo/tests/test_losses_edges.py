"""Losses at the edges of their conditions: shares, missing inputs, numbers on a bound."""

import math

import pytest
import torch

from corerl.contracts.policy_losses import PolicyLossInputs
from corerl.errors import MissingInputError
from corerl_grpo.losses import clip_cov, dppo_kl, dppo_tv, dro, kl_cov, opd
from corerl_grpo.losses.covariance import smallest, token_budget
from corerl_grpo.losses.options import (
    ClipCovOptions,
    DppoKlOptions,
    DppoTvOptions,
    DroOptions,
    KlCovOptions,
    OpdOptions,
)
from corerl_grpo.losses.ratio import importance_ratio


def inputs(log_probs, old, advantages, **more):
    rows = [torch.tensor([values], dtype=torch.float64) for values in (log_probs, old, advantages)]
    return PolicyLossInputs(*rows, torch.ones(1, len(old), dtype=torch.bool), **more)


def test_a_weight_is_capped_of_a_token_inside_the_bound_alone():
    """Risen from 0.001 to 0.1, inside and capped; to 0.9, outside; from 0.5 to 0.55, inside and not capped."""
    old, new = [0.001, 0.001, 0.5], [0.1, 0.9, 0.55]
    given = inputs([math.log(p) for p in new], [math.log(p) for p in old], [1.0, 1.0, 1.0])
    metrics = dppo_tv.dppo_tv(given, DppoTvOptions()).metrics
    assert (int(metrics["ratio_capfrac"].total), int(metrics["ratio_capfrac"].count)) == (1, 3)
    assert (int(metrics["pg_clipfrac"].total), int(metrics["pg_clipfrac"].count)) == (1, 3)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize(("below", "outside"), [(0.0, 0), (1e-9, 1)])
def test_a_token_on_the_bound_is_inside(advantage, below, outside):
    """Of 0.5 that rises to 0.75 where A > 0, and falls to 0.25 where A < 0: a distance of 1/4, and its binary KL."""
    old, new = math.log(0.5), math.log(0.75 if advantage > 0 else 0.25)
    given = inputs([new], [old], [advantage])
    divergence = float(dppo_kl.binary_kl(given.old_log_probs, given.log_probs)) - below
    metrics = dppo_kl.dppo_kl(given, DppoKlOptions(divergence, divergence)).metrics
    assert int(metrics["pg_clipfrac"].total) == outside
    distance = abs(float(given.log_probs.exp() - given.old_log_probs.exp())) - below
    metrics = dppo_tv.dppo_tv(given, DppoTvOptions(distance, distance)).metrics
    assert int(metrics["pg_clipfrac"].total) == outside


@pytest.mark.parametrize(
    ("loss", "options", "missing"),
    [
        (opd.opd, OpdOptions(), "ref_log_probs"),
        (clip_cov.clip_cov, ClipCovOptions(), "selected"),
        (kl_cov.kl_cov, KlCovOptions(), "selected"),
    ],
)
def test_an_input_that_the_run_does_not_compute_is_named(loss, options, missing):
    with pytest.raises(MissingInputError, match=f"'{missing}'"):
        loss(inputs([-1.0], [-1.0], [1.0]), options)


def test_a_budget_is_rounded_down_and_at_least_one():
    mask = torch.ones(4, 5, dtype=torch.bool)
    assert [token_budget(mask, share) for share in (1e-9, 0.05, 0.149, 0.15, 1.0)] == [1, 1, 2, 3, 20]


def test_the_candidates_with_the_smallest_numbers_are_taken_or_all_of_fewer():
    candidates = torch.tensor([[True, True, False, True]])
    numbers = torch.tensor([[0.3, 0.1, 0.0, 0.2]], dtype=torch.float64)
    taken = [smallest(candidates, numbers, count).tolist() for count in (1, 2, 3, 4)]
    assert taken == [
        [[False, True, False, False]],
        [[False, True, False, True]],
        [[True, True, False, True]],
        [[True, True, False, True]],
    ]


def test_a_token_without_an_advantage_is_never_clipped_and_may_be_drawn():
    """Ratios 1.5 and 0.5 at A = 0; log pi is 1 below its mean there and A too: covariance 1."""
    log_probs, advantages = [-3.0, -3.0, -1.0, -1.0], [0.0, 0.0, 4.0, 0.0]
    old = [-3.0 - math.log(1.5), -3.0 + math.log(2), -1.0, -1.0]
    uniforms = torch.zeros(1, 4, dtype=torch.float64)
    options = ClipCovOptions(clip_cov_ratio=0.5, clip_cov_lb=0.5, clip_cov_ub=2.0)
    selected = clip_cov.select_tokens(inputs(log_probs, old, advantages), uniforms, options)
    assert selected.tolist() == [[True, True, False, False]]


def test_the_metric_of_dro_is_its_mean_penalty():
    """d of 2 and 0, beta 0.5: 1 and 0."""
    [(name, mean)] = dro.dro(inputs([-1.0, -1.0], [-3.0, -1.0], [1.0, 1.0]), DroOptions(0.5)).metrics.items()
    assert (name, mean.value) == ("dro_penalty", 0.5)


def test_log_ratios_end_at_20():
    log_ratios = torch.tensor([20.5, -20.5, 19.5, 0.0], dtype=torch.float64)
    expected = [math.exp(20), math.exp(-20), math.exp(19.5), 1.0]
    assert importance_ratio(log_ratios, torch.zeros(4)).tolist() == pytest.approx(expected, rel=1e-12)
