"""Log-probs of prompts: of their tokens, of the likeliest tokens, of chosen tokens, of drawn tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from corerl.contracts.token_outputs import TokenChunk
from corerl_tinker.training.objective import CHUNK


@dataclass(frozen=True, eq=False)
class Scores:
    """Of the distribution at each position of rows; see :class:`corerl.contracts.token_outputs.OfLogits`.

    Attributes:
        targets: (B, T, K) int64 tokens whose log-probs ``log_probs`` are wanted, by the rows' ``group_ids``.
        top: number of likeliest tokens, whose log-probs are ``top_log_probs``; their ids are in ``top_ids``.
        draws: number of tokens to draw, in ``drawn_ids``; their log-probs are ``drawn_log_probs``.
        temperatures: (B,) of the draws; 0: the likeliest token.
        generators: of the draws of each row.
    """

    targets: Tensor
    top: int = 0
    draws: int = 0
    temperatures: Tensor = field(default_factory=lambda: torch.ones(1))
    generators: tuple[torch.Generator, ...] = ()
    chunk_size: int = CHUNK

    def __call__(self, logits: Tensor, chunk: TokenChunk) -> Mapping[str, Tensor]:
        rows, steps = chunk.batch.group_ids[chunk.rows].cpu(), chunk.steps.cpu()
        log_probs = logits.float().log_softmax(dim=-1)
        found = {"log_probs": log_probs.gather(1, self.targets[rows, steps].to(logits.device))}
        if self.top:
            values, ids = log_probs.topk(min(self.top, log_probs.shape[1]), dim=-1)
            found |= {"top_log_probs": values, "top_ids": ids}
        if self.draws:
            drawn = self._draw(log_probs.cpu(), rows).to(logits.device)
            found |= {"drawn_ids": drawn, "drawn_log_probs": log_probs.gather(1, drawn)}
        return found

    def _draw(self, log_probs: Tensor, rows: Tensor) -> Tensor:
        """(n, draws) independent draws, with replacement."""
        drawn = []
        for position, row in zip(log_probs, rows.tolist(), strict=True):
            temperature = float(self.temperatures[row])
            if temperature == 0:
                drawn.append(position.argmax().expand(self.draws))
                continue
            probs = (position.double() / temperature).softmax(dim=-1)
            drawn.append(torch.multinomial(probs, self.draws, replacement=True, generator=self.generators[row]))
        return torch.stack(drawn)
