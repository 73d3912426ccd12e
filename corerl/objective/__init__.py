"""From per-token terms to one scalar."""

from corerl.objective.aggregation import loss_weights
from corerl.objective.objectives import (
    PolicyObjective,
    ValueObjective,
    advantage_inputs,
    policy_loss_inputs,
)

__all__ = [
    "PolicyObjective",
    "ValueObjective",
    "advantage_inputs",
    "loss_weights",
    "policy_loss_inputs",
]
