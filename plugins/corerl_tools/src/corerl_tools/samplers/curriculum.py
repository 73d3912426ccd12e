"""``curriculum``: easy prompts first.

Bengio et al. 2009, "Curriculum learning", ICML.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from corerl import option
from corerl.data.prompts import Prompt
from corerl.errors import ConfigError


@dataclass(frozen=True)
class CurriculumOptions:
    """Options of ``curriculum``."""

    field: str = option("difficulty", "key of extra_info with a number")
    descending: bool = option(False, "the largest number first")
    epochs: int = option(1, "epochs in this order; later ones are shuffled", ge=1)


def curriculum(prompts: Sequence[Prompt], epoch: int, seed: int, *, options: CurriculumOptions) -> list[int]:
    """By ``extra_info[field]``; equal numbers are shuffled."""
    order = np.random.default_rng([seed, epoch]).permutation(len(prompts)).tolist()
    if epoch >= options.epochs:
        return [int(index) for index in order]
    numbers = [_number(prompt, options.field) for prompt in prompts]
    return sorted(order, key=lambda index: -numbers[index] if options.descending else numbers[index])


def _number(prompt: Prompt, field: str) -> float:
    value = prompt.extra_info.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(
            "data.sampler.field",
            f"'{field}' of extra_info must be a number, not {value!r:.50} of prompt {prompt.index}",
        )
    return float(value)
