"""The expected gradient of an update: the sum over all groups of episodes that a policy can sample.

Advantages, weights, correction and terms are computed by the code of a training step
(:func:`corerl.objective.estimate`, :func:`corerl.objective.loss_weights`,
:class:`corerl.objective.PolicyObjective`), in float64.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corerl.contracts.advantage_estimators import AdvantageEstimator, Turns
from corerl.contracts.experience import Experience
from corerl.contracts.objective import LossTerm
from corerl.contracts.policy_losses import LossOutput, PolicyLoss, PolicyLossInputs
from corerl.contracts.rollout_correctors import NoCorrector, RolloutCorrector
from corerl.contracts.token_outputs import OfLogits, TokenChunk, TokenOutputs, Wanted
from corerl.objective import PolicyObjective, estimate, loss_weights, policy_loss_inputs
from corerl_testing.enumerable.games import Game, groups
from corerl_testing.enumerable.objectives import Columns
from corerl_testing.enumerable.points import Point
from corerl_testing.tensors import generator

SOME = 6
"""groups that are estimated by themselves, to see whether an estimator looks at each group alone"""

SCALE_FACTOR = 7
"""of ``seq-mean-token-sum-norm``"""


def plain(inputs: PolicyLossInputs) -> LossOutput:
    """-A log pi."""
    return LossOutput(-inputs.advantages * inputs.log_probs)


class Batch(NamedTuple):
    """Episodes as a step has them."""

    experience: Experience
    turns: Turns | None
    components: dict[str, Tensor]

    def estimate(self, estimator: AdvantageEstimator, weights: Tensor | None = None) -> Tensor:
        """Advantages; ``weights`` are the factors of rollout correction."""
        return estimate(estimator, self.experience, self.components, weights, self.turns).advantages


@dataclass(frozen=True, eq=False)
class Sampled:
    """Every group of n episodes of one prompt, and how probable it is.

    Attributes:
        rollout: the policy that samples.
        old: the policy at the start of the step, by the trainer.
        members: (M, n) int64, episodes.
        chances: (M,) float64; they add up to 1.
        batches: of each group the batch of the trainer, and the turns.
    """

    game: Game
    rollout: Point
    old: Point
    members: Tensor
    chances: Tensor
    batches: list["Batch"] = field(repr=False)

    @property
    def rows(self) -> Tensor:
        """(M n,) int64: the members of all groups."""
        return self.members.flatten()

    @cached_property
    def whole(self) -> "Batch":
        """All groups as one batch."""
        count, n = self.members.shape
        return Batches(self.game, self.rollout, self.old)(self.rows, torch.arange(count).repeat_interleave(n))

    @cached_property
    def _weights(self) -> dict[str, Tensor]:
        return {}

    def weights(self, mode: str, mask: Tensor) -> Tensor:
        """(M n, T): weights of the loss, those of each group times its probability.

        Args:
            mask: (M n, T) bool, trained tokens.
        """
        if mode in self._weights and torch.equal(mask, self.whole.experience.response_mask):
            return self._weights[mode]
        n = self.members.shape[1]
        groups = mask.view(-1, n, mask.shape[1])
        one = torch.zeros(n, dtype=torch.int64)
        weights = torch.cat([loss_weights(group, mode, SCALE_FACTOR, group_ids=one) for group in groups])
        weights = weights * self.chances.repeat_interleave(n)[:, None]
        if torch.equal(mask, self.whole.experience.response_mask):
            self._weights[mode] = weights
        return weights


def sampled(rollout: Point, n: int, old: Point | None = None) -> Sampled:
    """Every group of ``n`` episodes.

    Args:
        old: the trainer's policy at the start of the step; None: the policy that samples.
    """
    old = old or rollout
    game = rollout.game
    members, orders = groups(len(game.paths), n)
    with torch.no_grad():
        chances = orders * rollout.probabilities[members].prod(dim=1)
        make = Batches(game, rollout, old)
        batches = [make(rows) for rows in members]
    return Sampled(game, rollout, old, members, chances, batches)


class Batches:
    """Makes the batch of given episodes; all other numbers are those of their states."""

    def __init__(self, game: Game, rollout: Point, old: Point) -> None:
        self.game = game
        values = torch.where(game.mask, game.numbers(3, game.states)[game.at.clamp(min=0)], 0.0)
        self.columns: dict[str, Tensor] = {
            "rollout_log_probs": rollout.log_probs,
            "old_log_probs": old.log_probs,
            "ref_log_probs": old.ref_log_probs,
            "sum_pi_squared": old.sum_pi_squared,
            "rewards": game.rewards,
            "values": values,
        }
        self.components = dict(zip(("accuracy", "format", "value"), game.components.T, strict=True))
        self.greedy = float(game.numbers(5, 1))

    def __call__(self, rows: Tensor, group_ids: Tensor | None = None) -> Batch:
        game, count = self.game, len(rows)
        tokens = torch.cat([torch.zeros(count, 1, dtype=torch.int64), game.tokens[rows]], dim=1)
        columns: dict[str, Any] = {name: column[rows] for name, column in self.columns.items()}
        batch = Experience(
            input_ids=tokens,
            prompt_lengths=torch.ones(count, dtype=torch.int64),
            response_lengths=game.lengths[rows],
            response_mask=game.mask[rows],
            group_ids=torch.zeros(count, dtype=torch.int64) if group_ids is None else group_ids,
            greedy_scores=torch.full((count,), self.greedy, dtype=torch.float64),
            **columns,
        )
        turns = Turns(game.turn_ids[rows], game.turn_rewards[rows], game.read_before[rows]) if game.turns else None
        return Batch(batch, turns, {name: each[rows] for name, each in self.components.items()})


@dataclass(frozen=True)
class Update:
    """The parts of an update.

    Attributes:
        select_tokens: the loss's token selector, or None.
        mode: ``actor.loss_agg_mode``.
        of_logits: the function of logits of the loss, or None.
        terms: further ones of the loss.
        columns: (batch, policy that samples, episode of each row) -> columns of tokens that loss and terms read.
    """

    loss: PolicyLoss = plain
    select_tokens: Any = None
    mode: str = "seq-mean-token-sum"
    corrector: RolloutCorrector = field(default_factory=NoCorrector)
    of_logits: OfLogits | None = None
    terms: Sequence[LossTerm] = ()
    columns: Columns | None = None


@dataclass(frozen=True, eq=False)
class Estimated:
    """Advantages of every group; a column of all groups end to end, (M n, T) each."""

    sampled: Sampled
    advantages: Tensor
    mask: Tensor
    rollout_weights: Tensor | None


def estimated(sampled: Sampled, estimator: AdvantageEstimator, corrector: RolloutCorrector | None = None) -> Estimated:
    """The advantages of an estimator, and the correction of each group."""
    if corrector is None or isinstance(corrector, NoCorrector):
        return Estimated(sampled, _advantages(sampled, estimator), sampled.whole.experience.response_mask, None)
    corrected = [_corrected(corrector, batch, estimator) for batch in sampled.batches]
    advantages, masks, weights = zip(*corrected, strict=True)
    joined = None if weights[0] is None else torch.cat(weights)
    return Estimated(sampled, torch.cat(advantages), torch.cat(masks), joined)


def _corrected(
    corrector: RolloutCorrector, batch: Batch, estimator: AdvantageEstimator
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Advantages, trained tokens and weights of a group, which is the batch and its only mini-batch."""
    correction, _ = corrector.of_batch(batch.experience, 0)
    factors = corrector.weights(correction)
    advantages, mini_batch = batch.estimate(estimator, factors), replace(batch.experience)
    if corrector.acts_on_mini_batches:
        assert mini_batch.old_log_probs is not None
        corrector.of_mini_batch(mini_batch, mini_batch.old_log_probs)
        return advantages, mini_batch.response_mask, mini_batch.rollout_weights
    return advantages, mini_batch.response_mask if correction is None else correction.response_mask, factors


def _advantages(sampled: Sampled, estimator: AdvantageEstimator) -> Tensor:
    """Of every group as a batch of its own: in one call, if some groups show that others have no effect on them."""
    together = sampled.whole.estimate(estimator).view(*sampled.members.shape, -1)
    count = len(sampled.members)
    places = {count * number // SOME for number in range(SOME)} | {count - 1}
    if all(_same(together[place], sampled.batches[place].estimate(estimator)) for place in places):
        return together.flatten(0, 1)
    return torch.cat([batch.estimate(estimator) for batch in sampled.batches])


def expected_gradient(found: Estimated, update: Update, point: Point | None = None) -> Tensor:
    """(states, vocabulary): the expectation of minus the gradient of the loss.

    Args:
        point: the policy that is trained; None: that at the start of the step.
    """
    sampled, rows = found.sampled, found.sampled.rows
    leaf = (point or sampled.old).leaf()
    batch = joined(found, update.mode)
    if update.columns is not None:
        batch.columns = {**batch.columns, **update.columns(batch, sampled.rollout, rows)}
    log_probs = leaf.log_probs[rows]
    if update.select_tokens is not None:
        batch.selected = _selected(batch, log_probs.detach(), sampled.members.shape[1], update.select_tokens)
    objective = PolicyObjective(update.loss, of_logits=update.of_logits, terms=update.terms)
    of_logits = _of_logits(leaf, batch, rows, objective.wanted)
    loss = objective(TokenOutputs(log_probs=log_probs, of_logits=of_logits), batch).loss
    (gradient,) = torch.autograd.grad(loss, leaf.logits)
    return -gradient


def joined(found: Estimated, mode: str) -> Experience:
    """All groups as one batch, with the weights of the loss."""
    return replace(
        found.sampled.whole.experience,
        response_mask=found.mask,
        advantages=found.advantages,
        rollout_weights=found.rollout_weights,
        loss_weights=found.sampled.weights(mode, found.mask),
    )


def _of_logits(leaf: Point, batch: Experience, rows: Tensor, wanted: Iterable[Wanted]) -> dict[str, Tensor] | None:
    """Results of functions of logits, (B, T, ...) each; logits are log-probs, as are last hidden states."""
    functions = [each for each in wanted if not isinstance(each, str)]
    if not functions:
        return None
    rows_of, steps = places = batch.response_mask.nonzero(as_tuple=True)
    chunk = TokenChunk(batch, rows_of, steps, head=lambda hidden: hidden)
    found: dict[str, Tensor] = {}
    for function in functions:
        for name, values in function(leaf.vocabulary_log_probs[rows][places], chunk).items():
            empty = values.new_zeros(*batch.response_mask.shape, *values.shape[1:])
            found[name] = empty.index_put(places, values)
    return found


def _selected(batch: Experience, log_probs: Tensor, n: int, select: Any) -> Tensor:
    """The choice of a selector for each group, as one mini-batch."""
    chosen = []
    for rows in torch.arange(len(batch)).view(-1, n):
        inputs = policy_loss_inputs(log_probs[rows], _rows_of(batch, rows))
        uniforms = torch.rand(inputs.response_mask.shape, generator=generator(6), dtype=torch.float64)
        chosen.append(select(inputs, uniforms))
    return torch.cat(chosen)


def _rows_of(batch: Experience, rows: Tensor) -> Experience:
    return batch.map(lambda _, column: column[rows])


def _same(left: Tensor, right: Tensor) -> bool:
    """Equal up to the order of sums."""
    return torch.allclose(left, right, rtol=1e-12, atol=1e-12)
