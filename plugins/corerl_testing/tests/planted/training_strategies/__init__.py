"""Wrong training strategies: the default one with one flaw each."""

from planted.training_strategies import lifecycle, outputs, partitions, updates

__all__ = ["FAULTS"]

FAULTS = [*outputs.FAULTS, *updates.FAULTS, *partitions.FAULTS, *lifecycle.FAULTS]
