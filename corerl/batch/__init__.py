"""What flows through a step: rollouts, and the padded tensors that training sees."""

from corerl.batch.cuts import balance, lockstep_micro_batches, micro_batches

__all__ = ["balance", "lockstep_micro_batches", "micro_batches"]
