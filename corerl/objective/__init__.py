"""From per-token terms to one scalar."""

from corerl.objective.advantages import estimate
from corerl.objective.aggregation import loss_weights, row_factors
from corerl.objective.objectives import PolicyObjective, ValueObjective, policy_loss_inputs
from corerl.objective.own_pass import OwnPass

__all__ = [
    "OwnPass",
    "PolicyObjective",
    "ValueObjective",
    "estimate",
    "loss_weights",
    "policy_loss_inputs",
    "row_factors",
]
