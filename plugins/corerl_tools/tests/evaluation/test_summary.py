import pytest

from corerl_tools.evaluation.summary import Sample, summarise


def samples(source: str, prompt: int, scores: list[float | None], answers: str | None = None) -> list[Sample]:
    extracted = answers or [None] * len(scores)
    return [Sample(source, prompt, score, answer) for score, answer in zip(scores, extracted, strict=True)]


def test_each_data_source_has_its_own_numbers() -> None:
    first = samples("a", 0, [1.0, 0.0]) + samples("a", 1, [1.0, 1.0])
    summaries = summarise([*first, *samples("b", 0, [0.0, 0.0])])
    assert [(each.data_source, each.prompts, each.responses, each.n) for each in summaries] == [
        ("a", 2, 4, 2),
        ("b", 1, 2, 2),
    ]
    values = {name: estimate.value for name, estimate in summaries[0].estimates.items()}
    assert values == pytest.approx(
        {"mean@2": 0.75, "pass@1": 0.75, "best@1": 0.75, "worst@1": 0.75, "pass@2": 1, "best@2": 1, "worst@2": 0.5}
    )


def test_a_response_without_a_score_takes_no_part_and_a_prompt_with_too_few_is_left_out() -> None:
    [summary] = summarise(samples("a", 0, [1.0, None, 0.0]) + samples("a", 1, [1.0, 0.0, 0.0]))
    assert (summary.unscored, summary.n) == (1, 3)
    assert summary.estimates["mean@3"].value == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert (summary.estimates["pass@3"].value, summary.estimates["pass@3"].prompts) == (1.0, 1)
    assert summary.estimates["pass@2"].prompts == 2


def test_correct_is_what_reaches_the_threshold() -> None:
    [summary] = summarise(samples("a", 0, [0.9, 0.1]), correct_from=0.9, ks=[1])
    assert summary.estimates["pass@1"].value == 0.5


def test_answers_are_counted_where_there_are_any() -> None:
    [summary] = summarise(samples("a", 0, [1.0, 1.0, 0.0], "xxy"))
    assert summary.estimates["maj@3"].value == 1.0
    assert "maj@3" not in summarise(samples("a", 0, [1.0, 1.0, 0.0]))[0].estimates


def test_when_nothing_has_a_score_there_are_no_estimates() -> None:
    [summary] = summarise(samples("a", 0, [None, None]))
    assert (dict(summary.estimates), summary.unscored) == ({}, 2)


HALVES = ["1/2", "0.5", r"\frac{1}{2}", "2", "2"]


def test_correct_answers_are_one_vote_however_they_are_spelled() -> None:
    scores = [1.0, 1.0, 1.0, 0.0, 0.0]
    [summary] = summarise([Sample("a", 0, score, answer) for score, answer in zip(scores, HALVES, strict=True)])
    assert summary.estimates["maj@5"].value == 1.0


def test_numbers_are_one_vote_by_their_value() -> None:
    """With two spellings of one half and one two, the wrong half wins."""
    [summary] = summarise([Sample("a", 0, 0.0, "1/2"), Sample("a", 0, 0.0, "0.50"), Sample("a", 0, 1.0, "2")])
    assert summary.estimates["maj@3"].value == 0.0
