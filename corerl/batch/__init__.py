"""What flows through a step: rollouts, and the padded tensors that training sees."""

from corerl.batch.cuts import lockstep_micro_batches, micro_batches
from corerl.batch.shares import Split, split

__all__ = ["Split", "lockstep_micro_batches", "micro_batches", "split"]
