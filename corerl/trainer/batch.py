"""The rows of a step and all work on their tokens, in the controller or in processes of the runtime."""

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pluggy
import torch

from corerl.batch.cuts import in_prompts
from corerl.contracts.advantage_estimators import AdvantageEstimator
from corerl.contracts.config import TrainConfig
from corerl.contracts.experience import Experience, RowNumbers
from corerl.contracts.kl_controllers import KLPenalty
from corerl.contracts.losses import Combined, Measure, masked_mean, measures_of, values
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_correctors import Correction, NoCorrector, PartwiseCorrector, RolloutCorrector
from corerl.contracts.throughput import ModelShape
from corerl.contracts.token_outputs import TokenOutputs
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.errors import NonFiniteError
from corerl.objective import estimate, row_factors
from corerl.rollout.scored import ScoredRollouts
from corerl.terminal.notices import say
from corerl.trainer.nonfinite import NonFiniteGuard


@dataclasses.dataclass
class Batch:
    """The rows of one step after another; :meth:`take` begins a step, and :meth:`end` frees its rows.

    The trainer's may be in other processes (hook ``make_batch``): it gets numbers, and handles of rows that models
    take. Calls run in their order, so the trainer begins all calls between two models at once.

    Attributes:
        scored, experience: the responses of the step, and the tensors of their rows.
        correction: by rollout correction, once the advantages are estimated.
        measured: metrics of the step so far; a float is of the whole step.
    """

    config: TrainConfig
    hook: pluggy.HookRelay
    tokenizer: ChatTokenizer
    estimator: AdvantageEstimator
    corrector: RolloutCorrector
    guard: NonFiniteGuard
    scored: ScoredRollouts = dataclasses.field(init=False)
    experience: Experience = dataclasses.field(init=False)
    correction: Correction | None = None
    measured: dict[str, Measure | float] = dataclasses.field(default_factory=dict)

    def take(self, scored: ScoredRollouts, width: int = 0) -> Experience:
        """Begin a step with these responses, in at least ``width`` columns; what models read of their rows."""
        self.scored, self.correction, self.experience = scored, None, scored.experience(width)
        self.measured.clear()
        return self.experience.tokens()

    def put(self, role: Literal["actor", "ref", "critic"], outputs: TokenOutputs | None) -> None:
        """Take the outputs of a model before the update. None: the engine's log-probs are the policy's."""
        experience = self.experience
        if outputs is None:
            experience.old_log_probs = experience.rollout_log_probs
        elif role == "ref":
            experience.ref_log_probs = outputs.log_probs
        elif role == "critic":
            experience.values = outputs.values
        else:
            experience.old_log_probs, experience.sum_pi_squared = outputs.log_probs, outputs.sum_pi_squared
            if outputs.entropy is not None:
                self.measured["actor/entropy"] = masked_mean(outputs.entropy, experience.response_mask)

    def estimate(self, step: int, lag: int, penalty: KLPenalty | None = None) -> RowNumbers:
        """Estimate advantages of the rewards, less the KL penalty; the rows without samples left out.

        Args:
            lag: largest staleness of the responses.

        Raises:
            NonFiniteError: there are samples with a number that is not finite, and they are not to be skipped.
            RunError: engine and trainer disagree.
        """
        numbers, means = self.estimate_rows(step, lag, penalty)
        self._check(means, lag)
        return numbers

    def estimate_rows(
        self, step: int, lag: int, penalty: KLPenalty | None = None
    ) -> tuple[RowNumbers, Mapping[str, Measure]]:
        """As :meth:`estimate`, and measures of the mismatch, which are not checked."""
        batch, experience = self.scored, self.experience
        masked = self.guard.mask_samples(step, experience, batch)
        self.measured |= {} if penalty is None else penalty.subtract(experience)
        means = self.compare_rows(lag) if experience.old_log_probs is not None else {}
        weights = self.corrector.weights(self.correction)
        turns = batch.turns(experience.response_mask.shape[1])
        estimated = estimate(self.estimator, experience, batch.components(), weights, turns)
        experience.advantages, experience.returns = estimated
        masked += self.guard.mask_samples(step, experience, batch)
        self.measured["training/nonfinite_samples"] = Combined(float(masked), operator.add)
        return experience.numbers(), means

    def compare(self, lag: int) -> None:
        """Compare engine and trainer, once the update has given the old log-probs.

        Raises:
            RunError: engine and trainer disagree.
        """
        self._check(self.compare_rows(lag), lag)

    def compare_rows(self, lag: int) -> Mapping[str, Measure]:
        """As :meth:`compare`; the measures of the mismatch, which are not checked."""
        self.correction, means = self.corrector.of_batch(self.experience, lag)
        self.measured |= {f"rollout_corr/{name}": mean for name, mean in means.items()}
        return means

    def _check(self, means: Mapping[str, Measure], lag: int) -> None:
        if isinstance(self.corrector, PartwiseCorrector):
            self.corrector.check(means, lag)

    def measure(self) -> dict[str, float]:
        """Metrics of the batch, those of plugins among them."""
        return values(self.measures(len(self.scored)))

    def measures(self, responses: int) -> dict[str, Measure | float]:
        """The metrics as measures of parts, and floats of plugins; ``responses``: of the whole step."""
        scored = self.scored
        self.measured |= self.of_plugins(self.experience, scored.results, scored.rollouts.truncated, responses)
        return dict(self.measured)

    def of_plugins(
        self, experience: Experience, results: Sequence[RewardResult], truncated: Sequence[bool], responses: int
    ) -> dict[str, Measure | float]:
        """Metrics of plugins."""
        given: list[Mapping[str, Any]] = self.hook.step_metrics(
            experience=experience,
            results=results,
            truncated=truncated,
            max_prompt_length=self.config.data.max_prompt_length,
            responses=responses,
        )
        return measures_of({name: each for metrics in given for name, each in metrics.items()})

    def rows(self) -> Experience:
        """All rows, as the critic trains on them."""
        return dataclasses.replace(self.experience)

    def correct(self, *, drops: bool) -> Experience:
        """Make the batch that of the policy: rejected tokens are not trained; its rows.

        Args:
            drops: neither are prompts without an advantage.
        """
        self.corrector.apply(self.correction, self.experience)
        mask = self.experience.response_mask
        if drops:
            numbers = self.experience.numbers()
            mask = mask & in_prompts(numbers.has_advantage, numbers.group_ids)[:, None]
        return dataclasses.replace(self.experience, response_mask=mask)

    def refuse(self, step: int, error: NonFiniteError, rows: Sequence[int]) -> None:
        """Save the rows of an update that is not finite.

        Raises:
            NonFiniteError: ``trainer.on_nonfinite`` is not ``skip``.
        """
        self.guard.handle(step, error, rows, self.experience, self.scored)

    def write_rollouts(self, path: Path) -> str | None:
        """Write the responses by a plugin; None, or why they are not written."""
        return self.write(path, self.scored, self.first_rows(self.config.trainer.log_rollouts_tokens))

    def write(self, path: Path, scored: ScoredRollouts, experience: Experience) -> str | None:
        """As :meth:`write_rollouts`; ``experience``: of the first ``trainer.log_rollouts_tokens`` responses."""
        try:
            written = self.hook.write_rollouts(
                path=path,
                rollouts=scored.rollouts,
                results=scored.results,
                experience=experience,
                tokenizer=self.tokenizer,
                token_rows=self.config.trainer.log_rollouts_tokens,
            )
        except OSError as error:
            return f"the sample rollouts could not be written: {error}"
        return None if written else "no plugin writes the sample rollouts (pip install corerl-tools)"

    def first_rows(self, responses: int) -> Experience:
        """The rows of the first ``responses``, and behind them their branches."""
        chosen = self.experience.of_rows(torch.arange(self.experience.episodes)) < responses
        return self.experience.select(chosen.nonzero().squeeze(1))

    def end(self) -> None:
        """Free the rows of the step."""
        del self.scored, self.experience
        self.correction = None


def make_guard(config: TrainConfig, folder: Path, hook: pluggy.HookRelay) -> NonFiniteGuard:
    """That of a run in this folder."""
    return NonFiniteGuard(folder / "nonfinite", config.trainer.on_nonfinite == "skip", hook)


def make_corrector(config: TrainConfig, hook: pluggy.HookRelay, shape: ModelShape) -> RolloutCorrector:
    """That of a plugin; without one, nothing is corrected, and a line is printed."""
    made: RolloutCorrector | None = hook.make_rollout_corrector(config=config, shape=shape)
    if made is None:
        say("log-probs of engine and trainer are not compared: pip install corerl-correction")
    return made or NoCorrector()


def weighed(mini_batch: Experience, numbers: RowNumbers, config: TrainConfig, loss_agg_mode: str) -> Experience:
    """The mini-batch, or handle, with the loss weights of its own tokens."""
    scale_factor = config.actor.loss_scale_factor or config.data.max_response_length
    episodes, groups = numbers.episode_ids, numbers.group_ids
    return mini_batch.weighed(row_factors(numbers.trained, loss_agg_mode, scale_factor, episodes, groups))
