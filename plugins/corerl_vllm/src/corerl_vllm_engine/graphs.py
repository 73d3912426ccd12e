"""Sizes of CUDA graphs: a decode step of as many requests as the engine takes is one of them.

vLLM captures at most 512 sizes by itself, and launches the kernels of a larger step one by one, which takes 1.6 to 2.8
times as long with 1,024 requests of a model of 0.5B.
"""

from collections.abc import Mapping
from typing import Any

GIVEN = ("max_cudagraph_capture_size", "cudagraph_capture_sizes", "enforce_eager")
"""arguments with which the sizes are those of the user"""


def missing_sizes(config: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that vLLM's config needs for graphs of all its decode steps; none if it has them or the user chose.

    Args:
        config: vLLM's, made of ``arguments``.
    """
    compilation = arguments.get("compilation_config") or {}
    if not isinstance(compilation, Mapping) or any(arguments.get(name) or name in compilation for name in GIVEN):
        return {}
    largest: int = config.compilation_config.max_cudagraph_capture_size or 0
    requests: int = config.scheduler_config.max_num_seqs
    return {"max_cudagraph_capture_size": requests} if 0 < largest < requests else {}
