"""Identity preference optimization (Azar et al. 2023, arXiv 2310.12036, equation 17).

    (s_w - s_l - m - 1 / (2 τ))²

The difference has a finite optimum, so pairs without noise do not drive the policy away from the reference.
"""

from dataclasses import dataclass

from torch import Tensor

from corerl import option
from corerl_supervised.contract import PreferenceInputs


@dataclass(frozen=True)
class IpoOptions:
    tau: float = option(0.1, "τ, strength of the pull to the reference: the difference aims at 1/(2 τ) nats", gt=0)


def ipo(inputs: PreferenceInputs, options: IpoOptions) -> Tensor:
    return (inputs.chosen - inputs.rejected - inputs.margins - 1 / (2 * options.tau)) ** 2
