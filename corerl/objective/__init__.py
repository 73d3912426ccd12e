"""From per-token terms to the one scalar that is minimised."""

from corerl.objective.aggregation import loss_weights
from corerl.objective.objectives import (
    Objective,
    ObjectiveOutput,
    PolicyObjective,
    SupervisedObjective,
    masked_mean,
)

__all__ = ["Objective", "ObjectiveOutput", "PolicyObjective", "SupervisedObjective", "loss_weights", "masked_mean"]
