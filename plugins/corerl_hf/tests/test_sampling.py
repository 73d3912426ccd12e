import numpy as np
import pytest
import torch

from corerl.contracts.rollout_backends import SamplingParams
from corerl_hf import sampling
from corerl_hf.sampling import Recorded, Sampler, SamplingArrays, row_key, uniforms

PROBS = [0.3, 0.5, 0.05, 0.15]


def draw(numbers, probs=PROBS, **params):
    """The tokens that ``numbers`` in [0, 1) lead to, and their reported probabilities."""
    sampler = Sampler(SamplingArrays.of([SamplingParams(max_tokens=1, **params)] * len(numbers)), torch.device("cpu"))
    logits = torch.tensor([probs] * len(numbers)).log()
    tokens, reported, _ = sampler(logits, torch.tensor(numbers, dtype=torch.float64))
    return tokens.tolist(), reported.tolist()


def test_a_number_selects_the_token_whose_share_of_the_unit_interval_it_falls_into():
    tokens, probs = draw([0.0, 0.29, 0.31, 0.79, 0.81, 0.84, 0.86, 1 - 2**-53])
    assert tokens == [0, 0, 1, 1, 2, 2, 3, 3]
    assert probs == pytest.approx([0.3, 0.3, 0.5, 0.5, 0.05, 0.05, 0.15, 0.15])


def test_temperature_divides_the_logits():
    # at temperature 1/2 probabilities are squared: 0.09, 0.25, 0.0025, 0.0225, in all 0.365
    tokens, probs = draw([0.24, 0.25, 0.93, 0.94], temperature=0.5)
    assert tokens == [0, 1, 1, 3]
    assert probs == pytest.approx([0.09 / 0.365, 0.25 / 0.365, 0.25 / 0.365, 0.0225 / 0.365])


def test_temperature_0_takes_the_likeliest_token_and_reports_its_plain_probability():
    tokens, probs = draw([0.0, 0.99], temperature=0.0)
    assert tokens == [1, 1]
    assert probs == pytest.approx([0.5, 0.5])


def test_top_k_keeps_the_k_likeliest_and_reports_probabilities_over_all_tokens():
    # 0.3 and 0.5 remain; token 0 has 0.375 of what is kept
    tokens, probs = draw([0.0, 0.37, 0.38, 1 - 2**-53], top_k=2)
    assert tokens == [0, 0, 1, 1]
    assert probs == pytest.approx([0.3, 0.3, 0.5, 0.5])


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    assert draw([0.0, 1 - 2**-53], top_p=0.45)[0] == [1, 1]
    assert draw([0.37, 0.38, 1 - 2**-53], top_p=0.55)[0] == [0, 1, 1]
    assert draw([0.84, 0.85, 1 - 2**-53], top_p=0.94)[0] == [1, 3, 3]  # 0.8 of 0.95 is left of token 3


def test_top_p_counts_within_what_top_k_kept():
    # of the two likeliest, 0.5 / 0.8 = 0.625 reaches 0.6 alone
    assert draw([0.0], top_k=2, top_p=0.6)[0] == [1]
    assert draw([0.0], top_k=2, top_p=0.65)[0] == [0]


def test_top_k_beyond_the_vocabulary_keeps_everything():
    numbers = [0.0, 0.31, 0.81, 0.86]
    assert draw(numbers, top_k=100)[0] == draw(numbers, top_k=4)[0] == [0, 1, 2, 3]


def test_rows_of_one_batch_are_sampled_each_in_its_own_way():
    params = [
        SamplingParams(max_tokens=1),
        SamplingParams(max_tokens=1, temperature=0.0),
        SamplingParams(max_tokens=1, temperature=0.5),
        SamplingParams(max_tokens=1, top_k=2),
        SamplingParams(max_tokens=1, top_p=0.45),
        SamplingParams(max_tokens=1, temperature=0.0, top_k=1),
    ]
    sampler = Sampler(SamplingArrays.of(params), torch.device("cpu"))
    last = torch.full((6,), 1 - 2**-53, dtype=torch.float64)
    tokens, probs, _ = sampler(torch.tensor([PROBS] * 6).log(), last)
    assert tokens.tolist() == [3, 1, 3, 1, 1, 1]
    assert probs.tolist() == pytest.approx([0.15, 0.5, 0.0225 / 0.365, 0.5, 0.5, 0.5])


def test_numbers_are_those_of_splitmix64():
    # the first outputs of the generator of Steele, Lea and Flood for the state 0
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    numbers = uniforms(np.zeros(1, dtype=np.uint64), 0, 3)
    assert numbers[:, 0].tolist() == [(bits >> 11) / 2**53 for bits in expected]
    assert uniforms(np.zeros(1, dtype=np.uint64), 1, 2).tolist() == numbers[1:].tolist()


def test_seed_prompt_and_sample_each_change_the_numbers():
    keys = {row_key(seed, prompt, sample) for seed in (0, 1, -1) for prompt in ([1], [2], [1, 2]) for sample in (0, 1)}
    assert len(keys) == 18


def test_numbers_of_neighbouring_rows_are_uniform_and_independent():
    keys = np.array([row_key(0, [5, 6], sample) for sample in range(1000)], dtype=np.uint64)
    numbers = uniforms(keys, 0, 100)
    counts = np.histogram(numbers, bins=10, range=(0, 1))[0]
    assert np.abs(counts - 10_000).max() < 5 * np.sqrt(10_000 * 0.9)
    assert abs(np.corrcoef(numbers[:, :-1].ravel(), numbers[:, 1:].ravel())[0, 1]) < 5 / np.sqrt(99_900)
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 5 / np.sqrt(99_000)


def test_min_p_keeps_tokens_of_a_share_of_the_likeliest():
    # 0.15 / 0.5 = 0.3
    assert draw([0.84, 0.86, 1 - 2**-53], min_p=0.29)[0] == [1, 3, 3]
    assert draw([0.0, 0.37, 0.38, 1 - 2**-53], min_p=0.31)[0] == [0, 0, 1, 1]
    assert draw([0.0, 1 - 2**-53], min_p=1.0)[0] == [1, 1]


def test_top_p_counts_within_what_min_p_kept():
    assert draw([0.0], min_p=0.5, top_p=0.6)[0] == [1]  # 0.5 / 0.8 reaches 0.6 alone
    assert draw([0.0], min_p=0.5, top_p=0.65)[0] == [0]


def recorded(params, recorded):
    """The drawn tokens of each row, with the largest number below 1, and all columns as lists by row."""
    sampler = Sampler(SamplingArrays.of(params), torch.device("cpu"), recorded)
    rows = len(params)
    drawn = sampler(torch.tensor([PROBS] * rows).log(), torch.full((rows,), 1 - 2**-53, dtype=torch.float64))
    columns = {
        name: [part.tolist() for part in values.split(counts.tolist())]
        for name, (values, counts) in drawn.columns.items()
    }
    return drawn, columns


def test_kept_tokens_of_each_row_and_probabilities_over_them():
    params = [
        SamplingParams(max_tokens=1),
        SamplingParams(max_tokens=1, top_k=2),
        SamplingParams(max_tokens=1, temperature=0.0, top_k=2),
        SamplingParams(max_tokens=1, top_p=0.9),
        SamplingParams(max_tokens=1, min_p=0.5),
    ]
    drawn, columns = recorded(params, Recorded(kept=True))
    assert columns == {"kept_tokens": [[], [1, 0], [], [1, 0, 3], [1, 0]]}
    assert drawn.tokens.tolist() == [3, 1, 1, 3, 1]
    assert drawn.probs.tolist() == pytest.approx([0.15, 0.5 / 0.8, 0.5, 0.15 / 0.95, 0.5 / 0.8])


def test_a_batch_without_a_limit_keeps_no_sets():
    for temperature in (0.0, 1.0):
        drawn, _ = recorded([SamplingParams(max_tokens=1, temperature=temperature)] * 2, Recorded(kept=True))
        assert drawn.columns["kept_tokens"][1].tolist() == [0, 0] and len(drawn.columns["kept_tokens"][0]) == 0


def test_most_likely_tokens_have_the_log_probs_of_the_distribution_that_is_reported():
    params = [SamplingParams(max_tokens=1), SamplingParams(max_tokens=1, top_k=2)]
    whole, over_kept = recorded(params, Recorded(top=3))[1], recorded(params, Recorded(kept=True, top=3))[1]
    assert whole["top_tokens"] == [[1, 0, 3]] * 2 and over_kept["top_tokens"] == [[1, 0, 3], [1, 0]]
    assert np.exp(whole["top_log_probs"]) == pytest.approx(np.array([[0.5, 0.3, 0.15]] * 2))
    assert np.exp(over_kept["top_log_probs"][1]) == pytest.approx(np.array([0.5 / 0.8, 0.3 / 0.8]))
    wide = recorded(params, Recorded(top=100))[1]
    assert [len(row) for row in wide["top_tokens"]] == [4, 4]


def nucleus(logits: np.ndarray, one: SamplingParams) -> list[int]:
    """The tokens that min-p, top-k and top-p keep, the likeliest first, from a whole sort in float64."""
    scaled = logits.astype(np.float64) / one.temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    order = [int(token) for token in np.argsort(-probs) if probs[token] >= one.min_p * probs.max()]
    order = order[: one.top_k] if one.top_k > 0 else order
    before = np.cumsum(probs[order]) - probs[order]
    return [token for token, mass in zip(order, before, strict=True) if mass < one.top_p * probs[order].sum()]


LIMITS: list[dict[str, float]] = [
    {"top_p": 0.5},
    {"top_p": 0.999},
    {"min_p": 0.3},
    {"min_p": 1e-4, "top_p": 0.9},
    {"top_p": 0.9, "top_k": 3},
    {"top_p": 0.95, "top_k": 40},
    {},
    {"top_p": 0.95, "temperature": 4.0},
    {"min_p": 1e-9},
]


@pytest.mark.parametrize("vocabulary", [5, 8, 200])
def test_ordering_few_tokens_first_keeps_those_of_a_whole_sort(monkeypatch, vocabulary):
    monkeypatch.setattr(sampling, "NARROW", 8)
    params = [SamplingParams(max_tokens=1, **limits) for limits in LIMITS for _ in range(6)]
    logits = 2.0 * torch.randn(len(params), vocabulary, generator=torch.Generator().manual_seed(0))
    wanted = [nucleus(row.numpy(), one) for row, one in zip(logits, params, strict=True)]
    wanted = [each if params[row] != SamplingParams(max_tokens=1) else [] for row, each in enumerate(wanted)]
    numbers = torch.linspace(0, 0.99, len(params), dtype=torch.float64)
    drawn = Sampler(SamplingArrays.of(params), torch.device("cpu"), Recorded(kept=True))(logits, numbers)
    values, counts = drawn.columns["kept_tokens"]
    assert [each.tolist() for each in values.split(counts.tolist())] == wanted
    for row, one in enumerate(params):
        alone = Sampler(SamplingArrays.of([one]), torch.device("cpu"), Recorded(kept=True))
        own = alone(logits[row : row + 1], numbers[row : row + 1])
        assert (own.tokens.item(), own.probs.item()) == (drawn.tokens[row].item(), drawn.probs[row].item())
        assert not wanted[row] or drawn.tokens[row].item() in wanted[row]


def test_only_rows_that_keep_more_than_the_ordered_tokens_order_the_vocabulary(monkeypatch):
    monkeypatch.setattr(sampling, "NARROW", 8)
    ordered = []
    plain = torch.Tensor.topk
    monkeypatch.setattr(
        torch.Tensor, "topk", lambda each, k, **named: (ordered.append((*each.shape, k)), plain(each, k, **named))[1]
    )
    logits = torch.zeros(4, 200)
    logits[[0, 1, 3], 5] = 30.0
    params = [SamplingParams(max_tokens=1, top_p=0.9)] * 4
    Sampler(SamplingArrays.of(params), torch.device("cpu"))(logits, torch.zeros(4, dtype=torch.float64))
    assert ordered == [(4, 200, 8), (1, 200, 200)]
