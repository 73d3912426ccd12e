"""Statistics over the tokens that truncated sampling kept."""

import functools
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corerl.contracts.experience import collate
from corerl.contracts.token_columns import TokenColumn, TokenValues
from corerl_torch import token_statistics as module
from corerl_torch.kept_tokens import EXCLUDED, TokenSets, kept_mask
from corerl_torch.token_statistics import in_chunks, log_distribution, of_distribution, token_statistics

WANTED = ("log_probs", "entropy", "sum_pi_squared")
VOCABULARY = 9


def in_float64(logits, targets, kept, temperature):
    """Each output from its definition, row by row over the kept tokens alone."""
    rows = []
    for row, target, own in zip(logits / temperature, targets.tolist(), kept, strict=True):
        pi = torch.softmax(row[own], dim=-1)
        chosen = pi[own[:target].sum()].log()
        rows.append(torch.stack([chosen, -(pi * pi.log()).sum(), pi.square().sum()]))
    return torch.stack(rows).unbind(dim=1)


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(6, VOCABULARY, generator=generator)
    targets = torch.randint(VOCABULARY, (6,), generator=generator)
    kept = torch.rand(6, VOCABULARY, generator=generator) < 0.4
    kept[torch.arange(6), targets] = True
    kept[2] = torch.arange(VOCABULARY) == targets[2]  # one token alone: log-prob 0, entropy 0
    kept[3] = True
    return logits, targets, kept, torch.randn(3, 6, generator=generator)


@pytest.fixture
def traced(monkeypatch):
    """torch.compile traces; its compiler, which takes 10 s, compiles with CORERL_EVERY_COMBINATION=1 alone."""
    if "CORERL_EVERY_COMBINATION" not in os.environ:
        monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    module._compile.cache_clear()
    yield
    module._compile.cache_clear()
    torch._dynamo.reset()


@pytest.mark.parametrize(("temperature", "compiled"), [(0.6, False), (1.0, False), (0.6, True)])
def test_values_and_gradients_are_those_of_the_distribution_over_the_kept_tokens(
    problem, temperature, compiled, traced
):
    logits, targets, kept, weights = problem
    ours, true = logits.clone().requires_grad_(), logits.double().requires_grad_()
    options = {"entropy": True, "sum_pi_squared": True, "compiled": compiled, "kept": kept}
    given = token_statistics(ours, targets, temperature, **options)
    expected = in_float64(true, targets, kept, temperature)
    for own, right in zip(given, expected, strict=True):
        torch.testing.assert_close(own.double(), right, rtol=1e-6, atol=1e-6)
    sum((own * weight).sum() for own, weight in zip(given, weights, strict=True)).backward()
    sum((own * weight.double()).sum() for own, weight in zip(expected, weights, strict=True)).backward()
    torch.testing.assert_close(ours.grad.double(), true.grad, rtol=1e-6, atol=1e-6)
    assert (ours.grad[~kept] == 0).all() and ours.grad[2].abs().max() < 1e-6


def test_the_distribution_of_the_vocabulary_has_no_infinite_value_and_no_nan_gradient(problem):
    logits, targets, kept, weights = problem
    ours, true = logits.clone().requires_grad_(), logits.double().requires_grad_()
    values = of_distribution(log_distribution(ours, 0.7, kept), targets, WANTED, truncated=True)
    expected = in_float64(true, targets, kept, 0.7)
    for name, right in zip(WANTED, expected, strict=True):
        torch.testing.assert_close(values[name].double(), right, rtol=1e-6, atol=1e-6)
    assert (values["vocabulary_log_probs"][~kept] == EXCLUDED).all()
    chosen = values["vocabulary_log_probs"][torch.arange(6), targets]
    torch.testing.assert_close(chosen, values["log_probs"])
    (sum((values[name] * weight).sum() for name, weight in zip(WANTED, weights, strict=True))).backward()
    sum((own * weight.double()).sum() for own, weight in zip(expected, weights, strict=True)).backward()
    torch.testing.assert_close(ours.grad.double(), true.grad, rtol=1e-6, atol=1e-6)


def test_a_token_outside_its_kept_set_has_no_finite_log_prob():
    logits, kept = torch.zeros(1, 4), torch.tensor([[True, True, False, False]])
    options = {"entropy": False, "sum_pi_squared": False, "kept": kept}
    assert token_statistics(logits, torch.tensor([3]), 1.0, **options).log_probs.item() == -torch.inf
    values = of_distribution(log_distribution(logits, 1.0, kept), torch.tensor([3]), ["log_probs"], truncated=True)
    assert values["log_probs"].item() == -torch.inf


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_masks_of_any_places_have_the_recorded_tokens(data):
    lengths = data.draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=4))
    sets, rows = {}, []
    for row, (prompt, response) in enumerate(lengths):
        recorded = data.draw(st.integers(0, prompt + response))  # of the last tokens
        own = [data.draw(st.sets(st.integers(0, VOCABULARY - 1), max_size=4)) for _ in range(recorded)]
        sets |= {(row, response - recorded + place): each for place, each in enumerate(own)}
        counts = torch.tensor([len(each) for each in own], dtype=torch.int32).numpy()
        values = torch.tensor([token for each in own for token in sorted(each)], dtype=torch.int32).numpy()
        rows.append(TokenValues(values, counts) if recorded else None)
    batch = collate(
        [[1] * prompt for prompt, _ in lengths], [[1] * response for _, response in lengths], [0] * len(rows)
    )
    if all(row is None for row in rows):
        assert kept_mask(batch, batch.response_mask.nonzero(), VOCABULARY) is None
        return
    batch.columns["kept_tokens"] = TokenColumn.collate(rows, batch.lengths.tolist())
    everywhere = batch.response_mask.nonzero()
    places = everywhere[data.draw(st.permutations(range(len(everywhere))))[: data.draw(st.integers(0, 9))]]
    start = data.draw(st.integers(0, VOCABULARY))
    mask = kept_mask(batch, places, VOCABULARY - start, start)
    for (row, step), own in zip(places.tolist(), mask, strict=True):
        kept = sets.get((row, step)) or set(range(VOCABULARY))
        assert set((own.nonzero()[:, 0] + start).tolist()) == {token for token in kept if token >= start}
    padded = TokenSets.of(batch, "kept_tokens").padded(places, VOCABULARY, -1)
    for (row, step), own in zip(places.tolist(), padded.tolist(), strict=True):
        assert own[: len(sets.get((row, step), ()))] == sorted(sets.get((row, step), ()))
        assert set(own[len(sets.get((row, step), ())) :]) <= {-1}


def test_chunks_change_nothing(problem):
    logits, targets, kept, _ = problem

    def statistics(hidden, targets, kept):
        return token_statistics(hidden, targets, 1.0, entropy=True, sum_pi_squared=True, kept=kept)._asdict()

    whole, cut = (in_chunks(statistics, (logits, targets, kept), size) for size in (None, 4))
    assert all(torch.equal(whole[name], cut[name]) for name in WANTED)
