"""Score centering: subtracts from the policy gradient the score that the engine's tokens have on average.

At a token, q is the engine's distribution and p the trainer's; y is drawn from q, and w(y) is its importance weight: 1
without ``rollout_is``, otherwise p / q within the bounds of ``rollout_is_mode``. A is the advantage, and the expected
update is::

    E_q[w A grad log p] = E_q[A] E_q[w grad log p] + Cov_q(A, w grad log p)

With p = q the first term is 0, because sum_v p grad log p = 0. Otherwise the first term is a drift: it has no knowledge
of which token was good, and moves p to the engine or away from it, with every update. Untruncated weights w = p / q
have no drift either; bounded ones do. Score centering adds A · C to the loss::

    C = sum_v sg(q w) log p(v)        grad C = E_q[w grad log p]

so the update is E_q[A (w grad log p - E_q[w grad log p])], which is 0 for any constant A.

The sum takes the engine's most likely tokens H (column ``top_log_probs``), and for all others q = rho p::

    C = sum_H sg(m - alpha p) log p    rho = (1 - q(H)) / (1 - p(H))

    rollout_is                 m                            alpha
    none                       q                            rho
    token, truncate            min(p, hi q)                 min(1, hi rho)
    token, clip                min(max(p, lo q), hi q)      min(max(1, lo rho), hi rho)

-alpha p on H is alpha p on all other tokens, because sum_v p grad log p = 0. The term is 0 if p = q, and exact if H is
everything that the engine may draw, or if the rest of q is proportional to that of p.

Marek and Ryabinin 2026, "Score Centering Stabilizes Off-policy Reinforcement Learning", arXiv 2609.20807, equation 14.

p is that of the present update, so the term is that of a policy loss with the gradient -w A grad log p: any loss at
the first update of a batch, and every loss with ``bypass_mode`` and weights. Tokens that ``rollout_rs`` rejects have no
term.
"""

import torch
from torch import Tensor

from corerl.contracts.config import RolloutCorrectionConfig
from corerl.contracts.experience import Experience
from corerl.contracts.token_outputs import OfLogits, TokenOutputs
from corerl_correction.correction import bounds
from corerl_torch.candidates import NAME, CandidateLogProbs, column_at

SMALLEST_TAIL = 1e-6
"""least probability of the tokens outside H under p, in rho; if both policies have less, rho is 1"""


class ScoreCentering:
    """A loss term, see :class:`corerl.contracts.objective.LossTerm`.

    Args:
        config: ``rollout_is`` is resolved: none or token.
        temperature: of the samples.
    """

    name = "score_centering"
    coefficient = 1.0

    def __init__(self, config: RolloutCorrectionConfig, temperature: float) -> None:
        self._config = config
        self.of_logits: OfLogits | None = CandidateLogProbs("top_tokens", temperature)

    def __call__(self, outputs: TokenOutputs, batch: Experience) -> Tensor:
        assert outputs.of_logits is not None and batch.advantages is not None
        log_p = outputs.of_logits[NAME]
        real = batch.response_mask
        log_q = column_at(batch, "top_log_probs", real.nonzero(), filler=-torch.inf)
        own = log_p[real]
        centered = (coefficients(own.detach(), log_q, self._config) * own).sum(dim=-1)
        return batch.advantages * torch.zeros_like(batch.advantages).masked_scatter(real, centered)


def coefficients(log_p: Tensor, log_q: Tensor, config: RolloutCorrectionConfig) -> Tensor:
    """m - alpha p of the tokens of H; (..., K) each, -inf in ``log_q`` where there is no token.

    ``log_p`` and ``log_q`` are log-probs of the same tokens under trainer and engine.
    """
    q = log_q.exp()
    p = torch.where(q > 0, log_p.exp(), 0.0)
    rest_q, rest_p = ((1 - each.sum(-1, keepdim=True)).clamp(min=SMALLEST_TAIL) for each in (q, p))
    rho = rest_q / rest_p
    if config.rollout_is != "token":
        return q - rho * p
    lower, upper = bounds(config.rollout_is_threshold_lower, config.rollout_is_threshold)
    lower = lower if config.rollout_is_mode == "clip" else 0.0
    mass = torch.minimum(torch.maximum(p, lower * q), upper * q)
    alpha = torch.minimum(torch.maximum(torch.ones_like(rho), lower * rho), upper * rho)
    return mass - alpha * p
