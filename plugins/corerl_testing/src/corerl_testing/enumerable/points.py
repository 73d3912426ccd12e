"""A policy of a game: probabilities of every episode, as functions of its logits."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from corerl_testing.enumerable.games import END, Game


@dataclass(frozen=True, eq=False)
class Point:
    """A policy of a game, with a reference policy.

    Attributes:
        logits, ref_logits: (states, vocabulary) float64; the gradient is that with respect to ``logits``.
    """

    game: Game
    logits: Tensor
    ref_logits: Tensor

    @classmethod
    def of(cls, game: Game, seed: int = 0) -> "Point":
        """A seeded policy with its reference."""
        return cls(game, game.logits(seed), game.logits(seed) + 0.5 * game.logits(seed + 1))

    def moved(self, distance: float, seed: int = 2) -> "Point":
        """Another policy, whose logits differ by about ``distance``."""
        return replace(self, logits=self.logits + distance * self.game.logits(seed))

    def leaf(self) -> "Point":
        """The same policy, whose logits require a gradient."""
        return replace(self, logits=self.logits.clone().requires_grad_())

    @property
    def vocabulary_log_probs(self) -> Tensor:
        """(S, T, vocabulary), 0 at tokens that the policy read."""
        return self._of_tokens(self.logits)

    @property
    def ref_vocabulary_log_probs(self) -> Tensor:
        """As :attr:`vocabulary_log_probs`, of the reference."""
        return self._of_tokens(self.ref_logits)

    @property
    def log_probs(self) -> Tensor:
        """(S, T), of the sampled tokens; 0 elsewhere."""
        return self._of_sampled(self.vocabulary_log_probs)

    @property
    def ref_log_probs(self) -> Tensor:
        """As :attr:`log_probs`, of the reference."""
        return self._of_sampled(self.ref_vocabulary_log_probs)

    @property
    def probabilities(self) -> Tensor:
        """(S,), of the episodes, the environment's part included."""
        return self.game.chances * self.log_probs.sum(dim=1).exp()

    @cached_property
    def sum_pi_squared(self) -> Tensor:
        """(S, T)."""
        return torch.where(self.game.mask, self.vocabulary_log_probs.exp().square().sum(dim=2), 0.0)

    def _of_tokens(self, logits: Tensor) -> Tensor:
        table = logits.log_softmax(dim=1)[self.game.at.clamp(min=0)]
        return torch.where(self.game.mask[:, :, None], table, 0.0)

    def _of_sampled(self, log_probs: Tensor) -> Tensor:
        sampled = torch.where(self.game.at == END, 0, self.game.tokens)
        return log_probs.gather(2, sampled[:, :, None]).squeeze(2)
