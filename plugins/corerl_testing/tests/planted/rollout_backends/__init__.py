"""Wrong rollout backends: the default one with one flaw each."""

from planted.rollout_backends import lifecycle, mixes, sampling, weights

__all__ = ["FAULTS"]

FAULTS = [*sampling.FAULTS, *mixes.FAULTS, *weights.FAULTS, *lifecycle.FAULTS]
