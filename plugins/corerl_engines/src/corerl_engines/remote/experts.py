"""The column ``experts`` of a sample, from the experts that an engine returns."""

from typing import Any

import numpy as np


class ExpertsOf:
    """
    Args:
        model: the trained model's ``layers`` (numbers of those with experts), ``experts`` (of a layer), ``top_k``.
    """

    def __init__(self, model: "dict[str, Any]") -> None:
        self.layers: list[int] = model["layers"]
        self.top_k: int = model["top_k"]
        self.experts: int = model["experts"]
        self._dtype = np.uint8 if self.experts <= 256 else np.int16

    def column(self, routed: Any, tokens: int) -> tuple[Any, Any]:
        """(values, counts) of the ``tokens`` of prompt and response.

        Args:
            routed: (tokens that were read, all layers, top_k), those of the first tokens; layers without experts have
                any values.

        Raises:
            RuntimeError: the engine routes another number of layers, experts or tokens; or its kernels record nothing.
        """
        routed = np.asarray(routed)
        fits = routed.ndim == 3 and routed.shape[1] > max(self.layers) and routed.shape[2] == self.top_k
        if not fits or len(routed) > tokens:
            raise RuntimeError(
                f"the engine returned experts of shape {routed.shape} for {tokens} tokens of a model with {self.top_k} "
                f"experts of each token in layer {max(self.layers)}"
            )
        values = routed[:, self.layers]
        if values.size and not 0 <= values.min() <= values.max() < self.experts:
            raise RuntimeError(f"the engine returned expert {values.max()}, and a layer has {self.experts}")
        ends = np.sort(values[[0, -1]], axis=-1) if len(values) else values
        if (ends[..., 1:] == ends[..., :-1]).any():
            raise RuntimeError("the engine returned an expert twice for one token: its kernels record no experts")
        counts = np.zeros(tokens, np.int32)
        counts[: len(routed)] = 1
        return np.ascontiguousarray(values, self._dtype), counts
