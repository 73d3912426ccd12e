"""``corerl check`` and ``corerl doctor``: what is wrong with a run before it starts, and where it is to run.

:mod:`findings` is what is said, :mod:`problems` the table that remedies and docs/troubleshooting.md are made from,
:mod:`configuration`, :mod:`installed`, :mod:`data` and :mod:`memory` look, :mod:`run` calls them in turn.
"""

from corerl.check.findings import finding, from_error
from corerl.check.machine import GIB, detect
from corerl.check.shares import PROCESS, longest, whole
from corerl.check.size import model_size
from corerl.contracts.checks import CpuBound, Finding, GenerationShare, Machine, ModelSize, TrainingShare

__all__ = [
    "GIB",
    "PROCESS",
    "CpuBound",
    "Finding",
    "GenerationShare",
    "Machine",
    "ModelSize",
    "TrainingShare",
    "detect",
    "finding",
    "from_error",
    "longest",
    "model_size",
    "whole",
]
