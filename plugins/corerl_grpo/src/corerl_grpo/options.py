"""Options of the entries; light, so that they can be checked without torch."""

from dataclasses import dataclass

from corerl import option


@dataclass(frozen=True)
class GrpoOptions:
    norm_adv_by_std_in_grpo: bool = option(True, "divide by the group's standard deviation")


@dataclass(frozen=True)
class VanillaOptions:
    clip_ratio_low: float = option(0.2, "the ratio is clipped below 1 - this", gt=0, le=1)
    clip_ratio_high: float = option(0.2, "the ratio is clipped above 1 + this", gt=0)
    clip_ratio_c: float = option(3.0, "dual clip: with a negative advantage the term is at most -A times this", gt=1)
