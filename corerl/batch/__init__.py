"""What flows through a step: rollouts, and the padded tensors that training sees."""

from corerl.batch.cuts import balance, balanced_partitions

__all__ = ["balance", "balanced_partitions"]
