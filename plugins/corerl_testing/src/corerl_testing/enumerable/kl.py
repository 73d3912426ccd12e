"""The mean of a KL type over the episodes of a game, and its mean gradient."""

import torch
from torch import Tensor

from corerl.contracts.kl_types import KLType
from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl.contracts.token_outputs import TokenOutputs
from corerl.objective import PolicyObjective, loss_weights
from corerl.registry import Selected
from corerl_testing.enumerable.expectation import Batches
from corerl_testing.enumerable.points import Point
from corerl_testing.vocabulary_term import VocabularyTerm
from corerl_torch.vocabulary import COLUMN, column


def expected_kl(selected: Selected[KLType], point: Point) -> tuple[Tensor, Tensor]:
    """The KL loss of one episode, a sum over tokens: its mean, and its mean gradient, (states, vocabulary)."""
    leaf = point.leaf()
    whole = torch.arange(len(point.game.paths))
    with torch.no_grad():
        batch, _, _ = Batches(point.game, point, point)(whole)
        weights = loss_weights(batch.response_mask, "token-sum")
        batch.advantages, batch.loss_weights = torch.zeros_like(weights), weights * point.probabilities[:, None]
    of_vocabulary = "logits" in selected.entry.needs
    objective = PolicyObjective(_nothing, selected.load(), 1.0)
    if of_vocabulary:
        batch.columns = {COLUMN: column(batch, point.ref_vocabulary_log_probs)}
        objective = PolicyObjective(_nothing, terms=[VocabularyTerm(selected.load(), 1.0)])
    outputs = TokenOutputs(log_probs=leaf.log_probs, vocabulary_log_probs=leaf.vocabulary_log_probs)
    found = objective(outputs, batch)
    (gradient,) = torch.autograd.grad(found.loss, leaf.logits)
    return found.loss.detach(), gradient


def _nothing(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(0 * inputs.log_probs)
