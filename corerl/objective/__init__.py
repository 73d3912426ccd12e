"""From per-token terms to the one scalar that is minimised."""

from corerl.objective.aggregation import loss_weights
from corerl.objective.objectives import (
    Objective,
    ObjectiveOutput,
    PolicyObjective,
    SupervisedObjective,
    ValueObjective,
    masked_mean,
    policy_loss_inputs,
)

__all__ = [
    "Objective",
    "ObjectiveOutput",
    "PolicyObjective",
    "SupervisedObjective",
    "ValueObjective",
    "loss_weights",
    "masked_mean",
    "policy_loss_inputs",
]
