"""Orders of prompts: shares, walks, resumption."""

from collections import Counter

import pytest

from corerl.data.prompts import Prompt
from corerl.data.sampler import PromptSampler
from corerl.errors import ConfigError
from corerl_tools.samplers.curriculum import CurriculumOptions, curriculum
from corerl_tools.samplers.mixture import MixtureOptions, mixture

SOURCES = ["big"] * 60 + ["small/a"] * 7 + ["small/b"] * 3


def prompts(sources: list[str] = SOURCES, **extra: list[object]) -> list[Prompt]:
    def info(index: int) -> dict[str, object]:
        return {name: values[index] for name, values in extra.items()}

    return [Prompt(index, (1,), [], source, "", info(index)) for index, source in enumerate(sources)]


def test_every_batch_has_the_shares_and_no_prompt_comes_twice_more_often_than_another() -> None:
    weights = MixtureOptions({"big": 3, "small/*": 1})
    rows = prompts()
    seen: Counter[int] = Counter()
    for epoch in range(5):
        order = mixture(rows, epoch, 7, options=weights)
        assert len(order) == 70
        for start in range(0, 70 - 9, 10):
            small = sum(index >= 60 for index in order[start : start + 10])
            assert 2 <= small <= 4
        seen.update(order)
    big, small = [seen[index] for index in range(60)], [seen[index] for index in range(60, 70)]
    assert sum(small) == 5 * 17 and max(small) - min(small) <= 1
    assert max(big) - min(big) <= 1
    assert mixture(rows, 0, 7, options=weights) != mixture(rows, 0, 8, options=weights)
    assert mixture(rows, 1, 7, options=weights) == mixture(rows, 1, 7, options=weights)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({}, "must have a weight above 0"),
        ({"big": 1, "small/*": 0}, "must have a weight above 0"),
        ({"big": 1}, "no weight for the data source 'small/a'"),
        ({"*": 1, "huge": 1}, "huge: is the weight of no prompt"),
    ],
)
def test_weights_that_do_not_fit_the_data_are_refused(weights: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        mixture(prompts(), 0, 0, options=MixtureOptions(weights))
    assert words in str(raised.value)


def test_a_tiny_weight_gets_one_prompt() -> None:
    order = mixture(prompts(), 0, 0, options=MixtureOptions({"big": 1e6, "small/*": 1}))
    assert (len(order), sum(index >= 60 for index in order)) == (70, 1)


def test_a_curriculum_rises_and_is_shuffled_later() -> None:
    rows = prompts(["s"] * 6, difficulty=[3, 1, 2, 1, 5, 4])
    order = curriculum(rows, 0, 0, options=CurriculumOptions())
    assert [rows[index].extra_info["difficulty"] for index in order] == [1, 1, 2, 3, 4, 5]
    down = curriculum(rows, 0, 0, options=CurriculumOptions(descending=True))
    assert [rows[index].extra_info["difficulty"] for index in down] == [5, 4, 3, 2, 1, 1]
    assert sorted(curriculum(rows, 1, 0, options=CurriculumOptions())) == list(range(6))
    with pytest.raises(ConfigError, match="must be a number, not None of prompt 0"):
        curriculum(prompts(["s"]), 0, 0, options=CurriculumOptions())


def test_a_loaded_sampler_goes_on_with_the_order() -> None:
    def made() -> PromptSampler:
        rows = prompts()
        return PromptSampler(
            70, 8, True, 3, lambda epoch, seed: mixture(rows, epoch, seed, options=MixtureOptions({"*": 1}))
        )

    straight, stopped = made(), made()
    expected = [next(straight) for _ in range(20)]
    assert [next(stopped) for _ in range(11)] == expected[:11]
    resumed = made()
    resumed.load_state_dict(stopped.state_dict())
    assert [next(resumed) for _ in range(9)] == expected[11:]


def test_an_order_of_another_length_or_with_other_indices_is_an_error() -> None:
    for order in ([0, 1], [0, 1, 3], [0, 1, -1]):
        with pytest.raises(ConfigError, match="must give 3 indices from 0 to 2"):
            next(PromptSampler(3, 1, True, 0, lambda epoch, seed, order=order: order))  # type: ignore[misc]
