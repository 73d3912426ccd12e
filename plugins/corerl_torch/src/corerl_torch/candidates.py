"""Log-probs of recorded tokens, such as the engine's most likely ones, as a function of the logits."""

from collections.abc import Mapping

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.token_outputs import TokenChunk
from corerl.errors import RunError
from corerl_torch.kept_tokens import TokenSets, kept_mask

NAME = "candidate_log_probs"
"""name of the result"""


class CandidateLogProbs:
    """(n, K) log pi of the tokens of a column, in their order, and 0 behind them.

    K is the largest number of tokens in the micro-batch. pi is softmax(logits / temperature), over the kept tokens if
    these are recorded.

    Args:
        column: token ids (``rollout.record``).
    """

    chunk_size = 2**31

    def __init__(self, column: str, temperature: float) -> None:
        self._column, self._temperature = column, temperature

    def __call__(self, logits: Tensor, chunk: TokenChunk) -> Mapping[str, Tensor]:
        places = torch.stack([chunk.rows, chunk.steps], dim=1)
        token_ids = column_at(chunk.batch, self._column, places, filler=-1)
        scaled = logits.float() / self._temperature
        kept = kept_mask(chunk.batch, places, logits.shape[1])
        if kept is not None:
            scaled = scaled.masked_fill(~kept, -torch.inf)
        chosen = scaled.gather(1, token_ids.long().clamp(min=0)) - scaled.logsumexp(dim=1, keepdim=True)
        return {NAME: torch.where(token_ids >= 0, chosen, 0.0)}


def column_at(batch: Experience, name: str, places: Tensor, filler: float) -> Tensor:
    """(n, K) values of a column at response tokens; K is the largest number in the batch, ``filler`` behind them.

    Args:
        places: (n, 2) int64, rows and steps.

    Raises:
        RunError: the column was not recorded.
    """
    sets = TokenSets.of(batch, name)
    if sets is None:
        raise RunError(f"the batch has no column '{name}': the rollout backend did not record it (rollout.record)")
    return sets.padded(places, max(1, int(sets.counts.max())), filler)
