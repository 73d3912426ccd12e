import pytest
import torch

from corerl.contracts.batch_filters import FilterInputs
from corerl.errors import RunError
from corerl_dapo.dynamic_sampling import dynamic_sampling
from corerl_dapo.options import DynamicSamplingOptions

SCORE = DynamicSamplingOptions()


def inputs(
    scores: list[float],
    groups: list[int],
    unscored: tuple[int, ...] = (),
    dtype: torch.dtype = torch.float32,
    **parts: list[float],
) -> FilterInputs:
    scored = torch.ones(len(scores), dtype=torch.bool)
    scored[list(unscored)] = False
    return FilterInputs(
        torch.tensor(scores, dtype=dtype),
        scored,
        torch.tensor(groups),
        {name: torch.tensor(values, dtype=dtype) for name, values in parts.items()},
    )


def test_groups_of_equal_scores_are_dropped_whole() -> None:
    kept = dynamic_sampling(inputs([1, 0, 1, 0, 1, 0], [0, 1, 0, 2, 2, 1]), SCORE)
    assert kept.tolist() == [False, False, False, True, True, False]
    assert kept.dtype == torch.bool


@pytest.mark.parametrize("score", [0.0, 1.0, -1.0, 0.1, 1e30])
def test_equal_is_equal_whatever_the_score(score: float) -> None:
    assert dynamic_sampling(inputs([score] * 7, [0] * 7), SCORE).tolist() == [False] * 7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_smallest_difference_counts(dtype: torch.dtype) -> None:
    above = torch.nextafter(torch.tensor(0.1, dtype=dtype), torch.tensor(1.0, dtype=dtype)).item()
    assert dynamic_sampling(inputs([0.1, above, 0.1], [0, 0, 0], dtype=dtype), SCORE).tolist() == [True] * 3


def test_a_response_without_a_score_decides_nothing_and_goes_with_its_group() -> None:
    kept = dynamic_sampling(inputs([1, 1, 0, 1, 0, 0], [0, 0, 0, 1, 1, 1], unscored=(2, 5)), SCORE)
    assert kept.tolist() == [False, False, False, True, True, True]


@pytest.mark.parametrize("unscored", [(0,), (0, 1)])
def test_fewer_than_two_scored_responses_are_no_group(unscored: tuple[int, ...]) -> None:
    kept = dynamic_sampling(inputs([5, 1, 0, 1], [0, 0, 1, 1], unscored), SCORE)
    assert kept.tolist() == [False, False, True, True]


def test_group_ids_may_have_gaps() -> None:
    assert dynamic_sampling(inputs([1, 1, 0, 1], [3, 3, 7, 7]), SCORE).tolist() == [False, False, True, True]


def test_a_component_can_decide() -> None:
    batch = inputs([1.0, 0.5, 1.0, 1.0], [0, 0, 1, 1], accuracy=[1, 1, 0, 1])
    assert dynamic_sampling(batch, DynamicSamplingOptions(metric="accuracy")).tolist() == [False, False, True, True]


def test_an_unknown_component_names_the_known_ones() -> None:
    batch = inputs([1.0], [0], length_ok=[1], accuracy=[1])
    with pytest.raises(RunError, match=r"metric 'accu' is no component .*; known: score, accuracy, length_ok$"):
        dynamic_sampling(batch, DynamicSamplingOptions(metric="accu"))


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        ({}, True),  # the score itself
        ({"score_before_penalty": [1.0, 1.0]}, False),  # lengths differ, answers do not
        ({"acc": [1.0, 0.0], "score_before_penalty": [1.0, 1.0]}, True),
    ],
)
def test_acc_is_correctness_before_a_penalty_as_in_verl(parts: dict[str, list[float]], kept: bool) -> None:
    found = dynamic_sampling(inputs([1.0, 0.5], [0, 0], **parts), DynamicSamplingOptions(metric="acc"))
    assert found.tolist() == [kept, kept]


def test_it_agrees_with_sets_on_a_random_batch() -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randint(0, 2, (600,), generator=generator).float()
    scored = torch.rand(600, generator=generator) < 0.7
    groups = torch.randint(0, 150, (600,), generator=generator)
    distinct: dict[int, set[float]] = {}
    for score, has, group in zip(scores.tolist(), scored.tolist(), groups.tolist(), strict=True):
        distinct.setdefault(group, set()).update([score] if has else [])
    expected = [len(distinct[group]) > 1 for group in groups.tolist()]
    assert dynamic_sampling(FilterInputs(scores, scored, groups), SCORE).tolist() == expected
    assert 0 < sum(expected) < 600
