"""Shapes of learning-rate schedules, behind the warm-up; no torch."""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

from corerl import option

KEY = "actor.optim.lr_scheduler_type"


class Shape(Protocol):
    """The learning rate as a share of ``lr``: 1 at the start, at best; 0 means ``min_lr_ratio``. Options of the entry
    are keyword arguments.
    """

    def __call__(self, progress: float) -> float:
        """
        Args:
            progress: share of the optimizer steps behind the warm-up, from 0 to 1.
        """
        ...


@dataclass(frozen=True)
class CosineOptions:
    """Options of ``cosine``."""

    num_cycles: float = option(0.5, "waves of the cosine; 0.5: down once", gt=0)


@dataclass(frozen=True)
class RestartOptions:
    """Options of ``cosine_with_restarts``."""

    num_cycles: int = option(2, "times that the rate falls from lr", ge=1)


@dataclass(frozen=True)
class WsdOptions:
    """Options of ``wsd``."""

    decay_ratio: float = option(0.1, "share of the steps, behind the warm-up, in which the rate falls", gt=0, le=1)
    decay: Literal["linear", "cosine", "sqrt"] = option("linear", "the fall; sqrt: 1 - the root of its share")


def constant(progress: float) -> float:
    """``lr`` to the end."""
    return 1.0


def linear(progress: float) -> float:
    """Down in a line."""
    return 1 - progress


def cosine(progress: float, *, options: CosineOptions) -> float:
    """Loshchilov and Hutter 2017 (SGDR), arXiv 1608.03983, equation 5, without restarts."""
    return (1 + math.cos(2 * math.pi * options.num_cycles * progress)) / 2


def cosine_with_restarts(progress: float, *, options: RestartOptions) -> float:
    """Loshchilov and Hutter 2017 (SGDR), arXiv 1608.03983, equation 5, with cycles of equal length."""
    cycle = options.num_cycles * progress
    return 0.0 if progress >= 1 else (1 + math.cos(math.pi * (cycle % 1))) / 2


def wsd(progress: float, *, options: WsdOptions) -> float:
    """Warm-up, stable, decay: Hu et al. 2024 (MiniCPM), arXiv 2404.06395, section 4; ``sqrt``: Hagele et al. 2024,
    arXiv 2405.18392, equation 3.
    """
    fallen = max(0.0, progress - (1 - options.decay_ratio)) / options.decay_ratio
    if options.decay == "cosine":
        return (1 + math.cos(math.pi * fallen)) / 2
    return 1 - (fallen**0.5 if options.decay == "sqrt" else fallen)
