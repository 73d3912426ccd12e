"""Jobs for the ranks of a strategy's test, and the same computation on one device."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean
from corerl.contracts.objective import ObjectiveOutput
from corerl.contracts.pieces import Box, ShardedStrategy
from corerl.contracts.token_outputs import TokenChunk, TokenOutputs, Wanted
from corerl.contracts.training_strategies import MicroBatching, StrategySpec, TrainingStrategy
from corerl.errors import CoreRLError
from corerl_testing.ranks import Job
from corerl_testing.training_kept import kept_tokens
from corerl_testing.training_reference import RESPONSE_LENGTHS, WHOLE, batch, copied_weights
from corerl_testing.trees import tree_batch
from corerl_torch.outputs import flat

VOCABULARY = 50


def rank_batch(seed: int = 0, rows: int = 7, *, kept: bool = False) -> Experience:
    """The rows that ranks share, of a vocabulary of 50 tokens, with returns.

    Args:
        kept: with the column ``kept_tokens``.
    """
    experience = batch(seed, "seq-mean-token-mean", rows=rows, vocabulary=VOCABULARY)
    if kept:
        experience.columns["kept_tokens"] = kept_tokens(experience, VOCABULARY)
    generator = torch.Generator().manual_seed(seed)
    experience.returns = torch.randn(experience.response_mask.shape, generator=generator)
    return experience


class AllOutputs:
    """A loss with every output of a language model, or squared errors of a critic's values.

    Args:
        head: as in the :class:`StrategySpec`.
        vocabulary: include the log-probs of the whole vocabulary.
        of_logits: include a function of the logits.
        bad_row: the loss of this row of the whole batch is NaN.
        error: raise ValueError with this text.
    """

    def __init__(
        self,
        head: str = "lm",
        *,
        vocabulary: bool = False,
        of_logits: bool = False,
        bad_row: int | None = None,
        error: str | None = None,
    ) -> None:
        self.head, self.vocabulary, self.bad_row, self.error = head, vocabulary, bad_row, error
        names: set[Wanted] = {"values"} if head == "value" else {"log_probs", "entropy", "sum_pi_squared"}
        if vocabulary:
            names.add("vocabulary_log_probs")
        self.of_logits = of_logits
        if of_logits:
            names |= {"hidden_states", Squares()}
        self.wanted = frozenset(names)

    def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
        if self.error is not None:
            raise ValueError(self.error)
        terms = self._terms(outputs, batch)
        if self.bad_row is not None:
            bad = (batch.response_lengths == RESPONSE_LENGTHS[self.bad_row])[:, None] & batch.response_mask
            terms = terms * torch.where(bad, float("nan"), 1.0)
        assert batch.loss_weights is not None
        loss = (terms * batch.loss_weights.float()).sum()
        length = Mean(batch.response_lengths.sum(), len(batch))
        return ObjectiveOutput(loss, {"loss": loss.detach()}, {"length": length})

    def _terms(self, outputs: TokenOutputs, batch: Experience) -> Tensor:
        given: Any = outputs
        if self.head == "value":
            terms: Tensor = (given.values - batch.returns) ** 2
        else:
            terms = -given.log_probs + 0.3 * given.entropy - 2 * given.sum_pi_squared
        if self.vocabulary:
            terms = terms + given.vocabulary_log_probs[..., ::3].square().sum(dim=-1) / VOCABULARY
        if self.of_logits:
            terms = terms + given.of_logits["squares"].sum(dim=-1)
        return terms


class Squares:
    """Squares of the logits of a token, and the place of the token, which tells chunks apart."""

    chunk_size = 2

    def __call__(self, logits: Tensor, chunk: TokenChunk) -> dict[str, Tensor]:
        squares = logits.float().square().mean(dim=1)
        return {"squares": torch.stack([squares, squares * (1 + chunk.steps)], dim=1)}


class RankJobs(ABC):
    """Jobs by ``kind``, the name of a method; the other keys of a job belong to :meth:`spec` and to that method."""

    def __call__(self, job: Job) -> Any:
        """A job's result, or its error."""
        try:
            return getattr(self, job["kind"])(job)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    @abstractmethod
    def strategy(self, job: Job) -> TrainingStrategy:
        """The strategy that a job describes."""

    @abstractmethod
    def record_gradient(self, strategy: Any, seen: dict[str, Tensor]) -> None:
        """Make ``strategy`` record the full gradient of its step, by Hugging Face name."""

    def spec(self, job: Job) -> StrategySpec:
        """The spec from the keys model (a folder), config (of the ModelConfig), cut (of the MicroBatching) and more."""
        model = ModelConfig(path=job["model"], **{"load_format": "dummy", "dtype": "fp32", **job.get("config", {})})
        falling = {"lr": 1e-2, "weight_decay": 0.1, "eps": 1e-3, "lr_scheduler_type": "linear"}
        optim = OptimConfig(**{**falling, **job.get("optim", {})})
        cut = MicroBatching(**job["cut"]) if "cut" in job else WHOLE
        spec = StrategySpec(model, job.get("device", "cpu"), cut, None if job.get("frozen") else optim, total_steps=10)
        rest = {"grad_clip": job.get("grad_clip", 1e6), "head": job.get("head", "lm"), "seed": job.get("seed", 0)}
        return dataclasses.replace(spec, temperature=0.7, **rest)

    def rows(self, job: Job) -> Experience:
        """The rows of :meth:`agree`."""
        return (
            tree_batch(job["trees"], vocabulary=VOCABULARY) if "trees" in job else rank_batch(rows=job.get("rows", 7))
        )

    def build(self, job: Job) -> None:
        """Build it."""
        self.strategy(job)

    def agree(self, job: Job) -> dict[str, Any]:
        """Forward, one update with its gradient, forward again, weights; after an update if ``warm``.

        With ``start``, the weights before the update too, which ranks must gather. With ``trees``, on the rows of
        :func:`~corerl_testing.trees.tree_batch` with this seed.
        """
        strategy = self.strategy(job)
        objective = AllOutputs(
            job.get("head", "lm"), vocabulary=job.get("vocabulary", False), of_logits=job.get("of_logits", False)
        )
        experience = self.rows(job)
        if job.get("kept"):
            experience.columns["kept_tokens"] = kept_tokens(experience, VOCABULARY)
        experience = share(experience, strategy)
        if job.get("warm"):
            strategy.update(experience, objective)
        gradient: dict[str, Tensor] = {}
        self.record_gradient(strategy, gradient)
        start = copied_weights(strategy) if job.get("start") else {}
        before = strategy.forward(experience, objective.wanted)
        metrics = strategy.update(experience, objective)
        after = strategy.forward(experience, objective.wanted)
        weights = copied_weights(strategy)
        return {
            "before": flat(before),
            "after": flat(after),
            "metrics": {name: mean.value for name, mean in metrics.items()},
            "gradient": gradient,
            "start": start,
            "weights": weights,
            "pieces": checked_pieces(strategy, weights),
            "place": (strategy.data_parallel_rank, strategy.data_parallel_size),
        }

    def train(self, job: Job) -> dict[str, Any]:
        """Updates on the batches of ``seeds``, after ``load`` and before ``save`` and ``export``."""
        strategy = self.strategy(job)
        if "load" in job:
            strategy.load(Path(job["load"]))
        for seed in job["seeds"]:
            strategy.update(share(rank_batch(seed), strategy), AllOutputs(job.get("head", "lm")))
        if "save" in job:
            (strategy.save(Path(job["save"])) or (lambda: None))()
        if "export" in job:
            strategy.export(Path(job["export"]))
        return {"weights": copied_weights(strategy)}

    def nonfinite(self, job: Job) -> dict[str, Any]:
        """The local rows named by an update whose ``bad_row`` is NaN, and whether the weights are unchanged."""
        strategy = self.strategy(job)
        before, rows = copied_weights(strategy), None
        experience = share(rank_batch(), strategy)
        try:
            strategy.update(experience, AllOutputs(bad_row=job["bad_row"]))
        except CoreRLError as error:
            rows = list(getattr(error, "rows", ()))
        same = all(torch.equal(weight, before[name]) for name, weight in copied_weights(strategy).items())
        strategy.update(experience, AllOutputs())
        return {"rows": rows, "same": same}

    def fail(self, job: Job) -> None:
        """The objective of one ``rank`` raises; the others update."""
        strategy = self.strategy(job)
        error = "out of order" if strategy.data_parallel_rank == job["rank"] else None
        strategy.update(share(rank_batch(), strategy), AllOutputs(error=error))


def share(experience: Experience, strategy: TrainingStrategy) -> Experience:
    """The rows of this data-parallel rank, round-robin."""
    return experience.select(torch.arange(strategy.data_parallel_rank, len(experience), strategy.data_parallel_size))


def checked_pieces(strategy: Any, weights: Mapping[str, Tensor]) -> list[tuple[str, Box]] | None:
    """The places of the pieces of a rank, whose values must be those of the whole weights; None: it has none."""
    if not isinstance(strategy, ShardedStrategy):
        return None
    with strategy.sharded_weights() as pieces:
        for piece in pieces or ():
            own = weights[piece.name]
            if own.shape != torch.Size(piece.shape) or not torch.equal(part(own, piece.box), piece.tensor.cpu()):
                raise AssertionError(f"the piece {piece.box} of '{piece.name}' has other values than the weight")
        return None if pieces is None else [(piece.name, piece.box) for piece in pieces]


def assert_covered(results: Sequence[Mapping[str, Any]]) -> None:
    """The pieces of all ranks of :meth:`RankJobs.agree` make up the weights."""
    seen = {name: torch.zeros(weight.shape, dtype=torch.bool) for name, weight in results[0]["weights"].items()}
    for result in results:
        for name, box in result["pieces"]:
            part(seen[name], box).fill_(True)
    missing = [name for name, own in seen.items() if not own.all()]
    if missing:
        raise AssertionError(f"no rank has a piece of all of '{missing[0]}'")


def part(weight: Tensor, box: Box) -> Tensor:
    """The view of a box."""
    return weight[tuple(slice(start, stop) for start, stop in box)]
