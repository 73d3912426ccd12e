"""Model FLOPs utilisation."""

from collections.abc import Sequence

from corerl.contracts.throughput import ModelShape

PEAK_TFLOPS = {"H100": 989.0, "H200": 989.0, "H800": 989.0, "H20": 148.0, "A100": 312.0, "A800": 312.0, "L40S": 362.0}
"""dense bf16 rate by the vendor's datasheet, by a part of the device's name"""


def training_flops(shape: ModelShape, lengths: Sequence[int]) -> float:
    """Floating-point operations of one forward and backward pass over rows of these lengths, causal attention halved.

    6 N for each token and 6 · layers · hidden_size · length for attention at each token (Chowdhery et al. 2022, "PaLM",
    arXiv 2204.02311, appendix B; half of its 12 for the causal mask).
    """
    tokens = sum(lengths)
    attention = 6 * shape.layers * shape.hidden_size * sum(length * length for length in lengths)
    return 6.0 * shape.parameters * tokens + attention


def mfu(shape: ModelShape, lengths: Sequence[int], seconds: float) -> float | None:
    """Share of all devices' peak that training reached; None where the device's peak is not known."""
    peak = next((rate for name, rate in PEAK_TFLOPS.items() if name in shape.device_name), None)
    if peak is None or seconds <= 0:
        return None
    return training_flops(shape, lengths) / seconds / (peak * 1e12 * shape.workers)
