"""The token selectors of clip_cov and kl_cov."""

import dataclasses

import pytest
import torch

from corerl.contracts.policy_losses import PolicyLossInputs
from corerl_grpo.losses import clip_cov, kl_cov
from corerl_grpo.losses.options import ClipCovOptions, KlCovOptions

CLIP = ClipCovOptions(clip_cov_ratio=0.05, clip_cov_lb=0.2, clip_cov_ub=1.5)
KL = KlCovOptions(kl_cov_ratio=0.05)
SELECTORS = [(clip_cov.select_tokens, CLIP), (kl_cov.select_tokens, KL)]


def batch(rows=20, tokens=15):
    generator = torch.Generator().manual_seed(3)
    log_probs = -3 * torch.rand(rows, tokens, generator=generator)
    old = log_probs + 0.2 * torch.randn(rows, tokens, generator=generator)
    advantages = torch.randn(rows, 1, generator=generator).expand(rows, tokens).clone()
    mask = torch.rand(rows, tokens, generator=generator) < 0.8
    uniforms = torch.rand(rows, tokens, generator=generator, dtype=torch.float64)
    return PolicyLossInputs(log_probs, old, advantages, mask), uniforms


def covariances(inputs):
    """Equation 10, (row, token) -> number."""
    places = [tuple(place) for place in inputs.response_mask.nonzero().tolist()]
    x = {place: float(inputs.log_probs[place]) for place in places}
    a = {place: float(inputs.advantages[place]) for place in places}
    mean_x, mean_a = sum(x.values()) / len(x), sum(a.values()) / len(a)
    return {place: (x[place] - mean_x) * (a[place] - mean_a) for place in places}


def chosen(selected):
    return {tuple(place) for place in selected.nonzero().tolist()}


def test_kl_cov_chooses_the_largest_covariances():
    inputs, uniforms = batch()
    numbers = covariances(inputs)
    largest = sorted(numbers, key=lambda place: -numbers[place])[: int(0.05 * len(numbers))]
    assert chosen(kl_cov.select_tokens(inputs, uniforms, KL)) == set(largest)


def test_clip_cov_draws_among_the_bounds_by_the_smallest_uniforms():
    inputs, uniforms = batch()
    candidates = []
    for place, number in covariances(inputs).items():
        ratio, a = float((inputs.log_probs[place] - inputs.old_log_probs[place]).exp()), float(inputs.advantages[place])
        if 0.2 <= number <= 1.5 and not (ratio > 1.2 and a > 0) and not (ratio < 0.8 and a < 0):
            candidates.append(place)
    drawn = sorted(candidates, key=lambda place: float(uniforms[place]))[: int(0.05 * int(inputs.response_mask.sum()))]
    assert len(drawn) < len(candidates)
    assert chosen(clip_cov.select_tokens(inputs, uniforms, CLIP)) == set(drawn)


@pytest.mark.parametrize(("select", "options"), SELECTORS)
def test_the_choice_follows_the_tokens_through_row_order_and_padding(select, options):
    inputs, uniforms = batch()
    before = select(inputs, uniforms, options)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(5))

    def moved(tensor, filler):
        padded = torch.full((22, 18), filler, dtype=tensor.dtype)
        padded[:20, :15] = tensor[order]
        return padded

    fields = {field.name: getattr(inputs, field.name) for field in dataclasses.fields(inputs)}
    fields = {
        name: moved(value, False if value.dtype is torch.bool else float("nan"))
        for name, value in fields.items()
        if value is not None
    }
    after = select(PolicyLossInputs(**fields), moved(uniforms, 0.0), options)
    assert before.any()
    assert torch.equal(after, moved(before, False))


@pytest.mark.parametrize(("select", "options"), SELECTORS)
def test_one_token_is_chosen_at_least_and_none_of_an_empty_mini_batch(select, options):
    inputs, uniforms = batch()
    rare = {"clip_cov_ratio" if options is CLIP else "kl_cov_ratio": 1e-9}
    assert int(select(inputs, uniforms, dataclasses.replace(options, **rare)).sum()) == 1
    empty = dataclasses.replace(inputs, response_mask=torch.zeros_like(inputs.response_mask))
    assert not select(empty, uniforms, options).any()


def test_kl_cov_breaks_ties_by_the_uniforms():
    inputs, uniforms = batch()
    flat = dataclasses.replace(inputs, advantages=torch.ones_like(inputs.advantages))
    count = int(0.05 * int(inputs.response_mask.sum()))
    places = sorted(covariances(inputs), key=lambda place: float(uniforms[place]))[:count]
    assert chosen(kl_cov.select_tokens(flat, uniforms, KL)) == set(places)


def column(values):
    return torch.tensor(values, dtype=torch.float32)[:, None]


@pytest.mark.parametrize("seed", range(5))
def test_the_means_are_exact_in_any_order_of_the_rows(seed):
    """Advantages 3e7, -3e7 and fourteen of 1 have mean 14/16; in float32, 3e7 + 1 is 3e7.

    So a 1 stands 1/8 above the mean, and where log pi is 1 above its own, the covariance is 1/8.
    """
    advantages, log_probs = column([3e7, -3e7] + [1.0] * 14), column([-1.0, -3.0] * 8)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(seed))
    mask, uniforms = torch.ones(16, 1, dtype=torch.bool), torch.arange(16.0, dtype=torch.float64)[:, None]
    inputs = PolicyLossInputs(log_probs[order], log_probs[order], advantages[order], mask)
    options = ClipCovOptions(clip_cov_ratio=0.5, clip_cov_lb=0.12, clip_cov_ub=0.13)
    selected = clip_cov.select_tokens(inputs, uniforms[order], options)
    assert {int(order[row]) for row, _ in chosen(selected)} == {2, 4, 6, 8, 10, 12, 14}


def test_kl_cov_fills_with_ties_only_what_larger_covariances_leave():
    """log pi is ±1 about its mean, A ±3, ±2 or ±1 about its own: covariances of 3 twice, 2 twice, 1 four times."""
    advantages = column([3.0, 2.0, -2.0, 1.0, -1.0, 1.0, -1.0, -3.0])
    log_probs = column([-1.0, -1.0, -3.0, -1.0, -3.0, -1.0, -3.0, -3.0])
    mask = torch.ones(8, 1, dtype=torch.bool)
    uniforms = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.1, 0.2, 0.5, 0.0], dtype=torch.float64)[:, None]
    inputs = PolicyLossInputs(log_probs, log_probs, advantages, mask)
    selected = kl_cov.select_tokens(inputs, uniforms, KlCovOptions(kl_cov_ratio=0.75))
    assert chosen(selected) == {(row, 0) for row in (0, 7, 1, 2, 4, 5)}
