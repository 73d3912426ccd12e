"""Wrong reward managers."""

from corerl.testing.planted.reward_managers import scoring, waiting

FAULTS = [*scoring.FAULTS, *waiting.FAULTS]
