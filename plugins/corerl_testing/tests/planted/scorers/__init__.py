"""Wrong scorers."""

from planted.scorers import processes, values

FAULTS = [*values.FAULTS, *processes.FAULTS]
