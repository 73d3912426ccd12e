"""Wrong reward managers."""

from planted.reward_managers import mixing, scoring, waiting

FAULTS = [*scoring.FAULTS, *mixing.FAULTS, *waiting.FAULTS]
