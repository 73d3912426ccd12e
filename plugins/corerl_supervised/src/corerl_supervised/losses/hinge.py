"""Hinge loss: SLiC (Zhao et al. 2023, arXiv 2305.10425; as a loss of log-ratios Liu et al. 2023, arXiv 2309.06657).

max(0, 1 + m - β (s_w - s_l))
"""

from dataclasses import dataclass

from torch import Tensor

from corerl import option
from corerl_supervised.contract import PreferenceInputs


@dataclass(frozen=True)
class HingeOptions:
    beta: float = option(0.1, "β, scale of the difference; a pair with a difference over 1/β has no gradient", gt=0)


def hinge(inputs: PreferenceInputs, options: HingeOptions) -> Tensor:
    return (1 + inputs.margins - options.beta * (inputs.chosen - inputs.rejected)).clamp(min=0)
