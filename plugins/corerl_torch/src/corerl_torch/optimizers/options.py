"""Options of the optimizers; they import no torch."""

from dataclasses import dataclass

from corerl import option


@dataclass(frozen=True)
class AdamWOptions:
    """Options of ``adamw``."""

    offload_fraction: float = option(
        0.0,
        "share of the weights, by bytes, whose moments are on the CPU, which steps them while the device steps the "
        "others; not megatron",
        ge=0,
        le=1,
    )


@dataclass(frozen=True)
class MuonOptions:
    """Options of ``muon``."""

    momentum: float = option(0.95, "decay of the momentum of matrices", ge=0, lt=1)
    nesterov: bool = option(True, "look ahead by one step of momentum")
    ns_steps: int = option(5, "steps of the Newton-Schulz iteration", ge=1)
    scale: float = option(0.2, "root mean square of an update over the learning rate, about that of AdamW", gt=0)


@dataclass(frozen=True)
class EightBitOptions:
    """Options of ``adamw_8bit``."""

    block_size: int = option(256, "numbers that share a scale", ge=16)
    min_8bit_size: int = option(4096, "numbers of a weight, on a rank, below which its moments are in float32", ge=1)
