"""Wrong scorers."""

from corerl.testing.planted.scorers import processes, values

FAULTS = [*values.FAULTS, *processes.FAULTS]
