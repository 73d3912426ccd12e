"""Wrong scorers."""

from corerl_testing.planted.scorers import processes, values

FAULTS = [*values.FAULTS, *processes.FAULTS]
