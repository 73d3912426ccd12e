"""The load of the experts: its metrics, a loss that evens it (Fedus et al. 2021, "Switch Transformers", arXiv
2101.03961, equations 4 to 6), and a bias that evens it without a loss (Wang et al. 2024, "Auxiliary-Loss-Free Load
Balancing Strategy for Mixture-of-Experts", arXiv 2408.15664, algorithm 1).

With E experts, k of them chosen, L layers and the N tokens that the model reads in a mini-batch, the loss is::

    1/L sum over layers of  E sum_e f_e P_e,    f_e = choices of e / N,    P_e = 1/N sum_t p_te

p are the router's scores over all experts, which add up to 1: a softmax, or sigmoids divided by their sum. At an even
load the loss is k. This is transformers' ``load_balancing_loss_func`` of each layer, averaged over layers.

f counts choices, so it has no gradient: it is a constant of the whole mini-batch, counted before its first micro-batch
over all micro-batches and ranks. With N it makes the loss a sum over tokens, and the gradient does not depend on the
division into micro-batches and ranks.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.token_columns import TokenColumn
from corerl.errors import ConfigError
from corerl_torch.routers import COLUMN, Routers

KEY = "actor.strategy"

BIAS = "e_score_correction_bias"
"""transformers' name of the buffer that is added to the scores of the experts for the choice alone"""

AddUp = Callable[[Tensor], Any]
"""adds a tensor up over all ranks, in place"""


def alone(counts: Tensor) -> None:
    """:data:`AddUp` of a single rank."""


def with_balance(loss: Tensor, balance: "LoadBalance | None") -> Any:
    """The loss of a micro-batch, and of the balance of its load if there is one."""
    return loss if balance is None or balance.loss is None else loss + balance.loss


class LoadBalance:
    """Counts the choices of a model's routers in updates.

    Args:
        coefficient: of the loss; 0: no loss.
        rate: what the bias of an expert changes by in an update; 0: none.

    Raises:
        ConfigError: ``rate`` is given, and the routers have no bias.

    Attributes:
        loss: of the last micro-batch, times its coefficient; None without one.
    """

    def __init__(self, routers: Routers, model: Any, coefficient: float = 0.0, rate: float = 0.0) -> None:
        self.routers, self.coefficient, self.rate = routers, coefficient, rate
        owners = [module for module in model.modules() if BIAS in dict(module.named_buffers(recurse=False))]
        self._owners: list[Any] = owners if rate else []
        if rate and len(owners) != len(routers.layers):
            kind = model.config.get_text_config().model_type
            raise ConfigError(f"{KEY}.router_bias_update_rate", f"must be 0: the routers of {kind} have no bias")
        routers.install()
        self.loss: Tensor | None = None
        self._fractions: Tensor | None = None
        self._logits: list[Tensor] = []
        self._real = torch.empty(0)
        self._device = next(model.parameters()).device
        self.begin()

    def begin(self) -> None:
        """Forget the counts."""
        shape = len(self.routers.layers), self.routers.experts
        self._counts = torch.zeros(shape, dtype=torch.float64, device=self._device)
        self._sums = torch.zeros(3, dtype=torch.float64, device=self._device)  # tokens, entropy, loss
        self._fractions = None

    def prepare(self, mini_batch: Experience, count: Callable[[], None], add_up: AddUp, *, counts_rows: bool) -> None:
        """Begin an update: forget the counts and, for the loss, count the choices of the mini-batch.

        Args:
            count: passes this rank's rows through the model; not called if the choices are replayed.
            counts_rows: no other rank counts the same rows.
        """
        self.begin()
        if not self.coefficient:
            return
        column = mini_batch.columns.get(COLUMN)
        known = torch.tensor([0.0 if column is None else float(len(column.values))], device=self._device)
        add_up(known)
        if known.item():
            if column is not None and counts_rows:
                self._count_column(column)
            tokens = mini_batch.lengths.sub(1).clamp(min=1).sum() if counts_rows else torch.zeros(())
            self._sums[0] = tokens.to(self._device)
        else:
            count()
        add_up(self._counts)
        add_up(self._sums)
        chosen = self._counts.sum(1, keepdim=True).clamp(min=1) / self.routers.top_k
        fractions = self._counts / chosen
        scale = self.coefficient * self.routers.experts / len(fractions) / self._sums[0].clamp(min=1)
        self.begin()
        self._fractions = (fractions * scale).float()

    @contextmanager
    def watching(self, tokens: Tensor, batch: Experience) -> Iterator[None]:
        """Within, a forward pass is counted.

        Args:
            tokens: (n,) int64, each input token's index among the token ids of the batch; -1: a filler token.
        """
        width = batch.input_ids.shape[1]
        lengths = batch.lengths.sub(1).clamp(min=1)
        self._real = (tokens >= 0) & (tokens % width < lengths[torch.div(tokens, width, rounding_mode="floor")])
        self._logits, self.loss = [], None
        self.routers.watch = self._seen
        try:
            yield
        finally:
            self.routers.watch = None
        if self._fractions is not None:
            self.loss = self._of_logits()
            self._logits = []

    @torch.no_grad()
    def finish(self, add_up: AddUp) -> Mapping[str, float]:
        """End an update: change the bias, and return the metrics."""
        add_up(self._counts)
        add_up(self._sums)
        for owner, counts in zip(self._owners, self._counts, strict=False):
            bias = getattr(owner, BIAS)
            bias += (self.rate * torch.sign(counts.mean() - counts)).to(bias.device, bias.dtype)
        tokens, entropy, loss = self._sums.tolist()
        even = self._counts.mean(1).clamp(min=1e-9)
        largest, smallest = (self._counts.amax(1) / even).tolist(), (self._counts.amin(1) / even).tolist()
        layers = len(largest)
        found = {
            "router_entropy": entropy / max(tokens, 1) / layers,
            "expert_load_max": sum(largest) / layers,
            "expert_load_worst": max(largest),
            "expert_load_min": sum(smallest) / layers,
        }
        return found | ({"router_aux_loss": loss / self.coefficient} if self.coefficient else {})

    def _count_column(self, column: TokenColumn) -> None:
        chosen = column.values.to(self._device).long().transpose(0, 1).flatten(1)
        self._counts.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=torch.float64))

    def _seen(self, number: int, logits: Tensor, chosen: Tensor) -> None:
        with torch.no_grad():
            scores, real = self._scores(logits), self._real.float()
            hits = torch.zeros_like(scores).scatter_(1, chosen, real[:, None].expand_as(chosen))
            self._counts[number] += hits.sum(0)
            entropy = -torch.special.xlogy(scores, scores).sum(1)
            self._sums[0] += real.sum() if number == 0 else 0.0
            self._sums[1] += (entropy * real).sum()
        if self._fractions is not None:
            self._logits.append(logits)

    def _of_logits(self) -> Tensor:
        assert self._fractions is not None
        parts = []
        for logits, fractions in zip(self._logits, self._fractions, strict=True):
            parts.append(((self._scores(logits) * fractions).sum(1) * self._real).sum())
        loss = torch.stack(parts).sum()
        self._sums[2] += loss.detach()
        return loss

    def _scores(self, logits: Tensor) -> Tensor:
        """(tokens, experts) that add up to 1."""
        if not self.routers.sigmoid:
            return logits.softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32)).sigmoid()
        return scores / scores.sum(1, keepdim=True).clamp(min=1e-20)
