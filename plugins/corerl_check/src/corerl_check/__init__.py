"""For ``corerl check`` and ``corerl doctor``: findings with remedies, and shares of memory.

:mod:`findings` writes sentences, :mod:`problems` is the table behind remedies and docs/troubleshooting.md,
:mod:`shares` and :mod:`size` hold bytes of models, :mod:`installed` examines the parts that a config selects.
"""

from corerl_check.contract import Examined, Finding, Machine, MainMemory, QuantizedOptions, ServedOptions
from corerl_check.findings import finding, from_error
from corerl_check.machine import GIB, count_processors, detect
from corerl_check.main_memory import main_memory
from corerl_check.shares import (
    PROCESS,
    CpuBound,
    EngineRank,
    GenerationShare,
    PlacesModels,
    SavesMemory,
    SharesGeneration,
    SharesTraining,
    SpansNodes,
    TrainingShare,
    longest,
    whole,
)
from corerl_check.size import ModelSize, model_size

__all__ = [
    "GIB",
    "PROCESS",
    "CpuBound",
    "EngineRank",
    "Examined",
    "Finding",
    "GenerationShare",
    "Machine",
    "MainMemory",
    "ModelSize",
    "PlacesModels",
    "QuantizedOptions",
    "SavesMemory",
    "ServedOptions",
    "SharesGeneration",
    "SharesTraining",
    "SpansNodes",
    "TrainingShare",
    "count_processors",
    "detect",
    "finding",
    "from_error",
    "longest",
    "main_memory",
    "model_size",
    "whole",
]
