import pytest

from corerl.contracts.evaluations import ValidationSample
from corerl.plugins import load_plugins


def test_of_several_responses_best_and_worst_are_those_of_two_and_of_all():
    """Two responses with scores 1 and 0: the better one of both is 1, the worse one 0. @1 is the mean, and left out."""
    samples = [
        ValidationSample("sums", prompt, score, 4, {}, extracted=str(score))
        for prompt in (0, 1)
        for score in (1.0, 0.0)
    ]
    [metrics] = load_plugins().hook.validation_metrics(samples=samples, n=2)
    assert metrics["val-aux/sums/reward/best@2"] == pytest.approx(1.0)
    assert metrics["val-aux/sums/reward/worst@2"] == pytest.approx(0.0)
    several = {name.rpartition("/")[2] for name in metrics if name.startswith("val-aux/sums/reward/")}
    assert several == {"best@2", "worst@2", "maj@2"}
    assert load_plugins().hook.validation_metrics(samples=samples, n=1) == [{}]
