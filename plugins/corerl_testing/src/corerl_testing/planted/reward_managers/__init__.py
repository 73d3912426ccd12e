"""Wrong reward managers."""

from corerl_testing.planted.reward_managers import mixing, scoring, waiting

FAULTS = [*scoring.FAULTS, *mixing.FAULTS, *waiting.FAULTS]
