"""From per-token terms to one scalar."""

from corerl.objective.aggregation import loss_weights
from corerl.objective.objectives import PolicyObjective, SupervisedObjective, ValueObjective, policy_loss_inputs

__all__ = ["PolicyObjective", "SupervisedObjective", "ValueObjective", "loss_weights", "policy_loss_inputs"]
