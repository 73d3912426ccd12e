"""The metrics of an evaluation: means over prompts."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from corerl.contracts.evaluations import ValidationSample


def validation_metrics(samples: Sequence[ValidationSample], n: int) -> dict[str, float]:
    """``val-core/<data source>/reward/mean@n``: the mean over prompts of the mean over their scored responses.

    ``val-aux/<data source>/<component>/mean@n`` is the same of each named part of the scores. Responses
    without a score are left out; their share is ``val-aux/error_ratio``.
    """
    values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        if sample.score is not None:
            values[f"val-core/{sample.data_source}/reward"][sample.prompt].append(sample.score)
            for name, value in sample.components.items():
                values[f"val-aux/{sample.data_source}/{name}"][sample.prompt].append(value)
    metrics = {
        f"{name}/mean@{n}": fmean(fmean(of_prompt) for of_prompt in by_prompt.values())
        for name, by_prompt in values.items()
    }
    metrics["val-aux/error_ratio"] = fmean(sample.score is None for sample in samples)
    metrics["val-aux/response_length/mean"] = fmean(sample.response_length for sample in samples)
    return metrics
