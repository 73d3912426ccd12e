"""Dynamic sampling: drops groups whose responses all scored the same, which give no gradient.

With s_i the metric of the scored responses i of a group, the group is kept if::

    max_i s_i > min_i s_i

Yu et al. 2025 (DAPO), arXiv 2503.14476, equation 11: 0 < number of correct responses < G. For a metric of 0 and 1
both conditions are equal. Equality is exact. A group with fewer than two scored responses is dropped.

The paper's metric is correctness. The reward manager ``dapo`` shapes scores by length, so the scores of correct
responses differ: use its component ``score_before_penalty``, or ``acc``, as in verl: the component ``acc`` of the
scorer if it has one, else ``score_before_penalty`` if the manager has it, else the score.
"""

import torch
from torch import Tensor

from corerl.contracts.batch_filters import FilterInputs
from corerl.errors import RunError
from corerl_dapo.options import DynamicSamplingOptions
from corerl_torch.statistics import group_maxima

_CORRECTNESS = ("acc", "score_before_penalty")


def dynamic_sampling(inputs: FilterInputs, options: DynamicSamplingOptions) -> Tensor:
    """(B,) bool: true for the rows of kept groups, including rows without a score.

    Raises:
        RunError: ``metric`` is neither ``score`` nor a component.
    """
    metric = metric_values(inputs, options.metric)
    largest = group_maxima(torch.where(inputs.scored, metric, -torch.inf), inputs.group_ids)
    smallest = -group_maxima(torch.where(inputs.scored, -metric, -torch.inf), inputs.group_ids)
    return largest > smallest


def metric_values(inputs: FilterInputs, name: str) -> Tensor:
    """(B,) float."""
    if name == "acc":
        name = next((each for each in _CORRECTNESS if each in inputs.components), "score")
    if name == "score":
        return inputs.scores
    if name not in inputs.components:
        known = ", ".join(["score", *sorted(inputs.components)])
        raise RunError(f"dynamic_sampling: metric '{name}' is no component of this run's scores; known: {known}")
    return inputs.components[name]
