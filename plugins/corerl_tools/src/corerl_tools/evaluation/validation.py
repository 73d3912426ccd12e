"""best@k, worst@k and maj@k of the evaluations of a training, as in ``corerl eval``."""

from collections.abc import Sequence

from corerl.contracts.evaluations import ValidationSample
from corerl_tools.evaluation.summary import Sample, summarise


def of_several(samples: Sequence[ValidationSample]) -> dict[str, float]:
    """``val-aux/<data source>/reward/best@k``, ``worst@k`` and ``maj@k`` for k = 2, 4, … and n responses per prompt."""
    plain = [Sample(each.data_source, each.prompt, each.score, each.extracted) for each in samples]
    return {
        f"val-aux/{summary.data_source}/reward/{name}": estimate.value
        for summary in summarise(plain)
        for name, estimate in summary.estimates.items()
        if name.startswith(("best", "worst", "maj")) and not name.endswith("@1")
    }
