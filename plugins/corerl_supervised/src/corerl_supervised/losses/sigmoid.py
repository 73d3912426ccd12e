"""Logistic loss, the negative log-likelihood of the Bradley–Terry model: DPO and reward models.

    -(1 - ε) log σ(β (s_w - s_l) - m) - ε log σ(-(β (s_w - s_l) - m))

* DPO (Rafailov et al. 2023, arXiv 2305.18290, equation 7): s is the log-ratio of policy and reference, m = 0, ε = 0.
* ε > 0 is conservative DPO: a label is wrong with probability ε (Mitchell 2023, A note on DPO with noisy preferences).
* DPO with an offset (Amini et al. 2024, arXiv 2402.10571, equation 8): m is the offset of the row.
* Reward model: s is the reward, β = 1 (Bradley and Terry 1952; Ouyang et al. 2022, arXiv 2203.02155, equation 1), with
  m as the margin (Touvron et al. 2023, arXiv 2307.09288, equation 2).
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import logsigmoid

from corerl import option
from corerl_supervised.contract import PreferenceInputs


@dataclass(frozen=True)
class SigmoidOptions:
    beta: float = option(0.1, "β, scale of the difference: strength of the pull to the reference", gt=0)
    label_smoothing: float = option(0.0, "ε, probability of a wrong label", ge=0, lt=0.5)


@dataclass(frozen=True)
class BradleyTerryOptions(SigmoidOptions):
    beta: float = option(1.0, "β, scale of the difference", gt=0)


def sigmoid(inputs: PreferenceInputs, options: SigmoidOptions) -> Tensor:
    logits = options.beta * (inputs.chosen - inputs.rejected) - inputs.margins
    wrong = options.label_smoothing
    return -(1 - wrong) * logsigmoid(logits) - wrong * logsigmoid(-logits)
