"""The metrics of an evaluation."""

import pytest

from corerl.contracts.evaluations import ValidationSample
from corerl_torch.validation_metrics import validation_metrics


def sample(prompt, score, source="sums", length=4, **components):
    return ValidationSample(source, prompt, score, length, components)


def test_each_data_source_is_a_mean_over_prompts_of_means_over_scored_responses():
    """Prompt 0 has scores 1 and 0 and a failure, prompt 1 a 1 and two failures: 0.75, and 2/3 if responses counted."""
    samples = [sample(0, 1.0), sample(0, 0.0), sample(0, None), sample(1, 1.0), sample(1, None), sample(1, None)]
    samples += [sample(2, 5.0, "more", length=10), sample(2, 6.0, "more", 10), sample(2, 7.0, "more", 10)]
    metrics = validation_metrics(samples, 3)
    assert metrics["val-core/sums/reward/mean@3"] == pytest.approx(0.75)
    assert metrics["val-core/more/reward/mean@3"] == pytest.approx(6.0)
    assert metrics["val-aux/error_ratio"] == pytest.approx(3 / 9)
    assert metrics["val-aux/response_length/mean"] == pytest.approx(6.0)


def test_parts_of_the_scores_are_means_of_the_same_kind_over_the_responses_that_have_them():
    samples = [sample(0, 1.0, format=0.5), sample(0, 1.0), sample(1, 0.0, format=0.0), sample(1, None, format=9.0)]
    assert validation_metrics(samples, 2)["val-aux/sums/format/mean@2"] == pytest.approx((0.5 + 0.0) / 2)


def test_one_response_to_a_prompt_has_the_mean_alone():
    assert set(validation_metrics([sample(0, 1.0), sample(1, 0.0)], 1)) == {
        "val-core/sums/reward/mean@1",
        "val-aux/error_ratio",
        "val-aux/response_length/mean",
    }
