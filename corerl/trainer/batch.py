"""The rows of a step and all work on their tokens, in the controller or in the worker of the role ``batch``."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import pluggy
from torch import Tensor

from corerl.batch.cuts import in_prompts
from corerl.contracts.advantage_estimators import AdvantageEstimator
from corerl.contracts.config import TrainConfig
from corerl.contracts.dispatch import dispatch
from corerl.contracts.experience import Experience, RowNumbers
from corerl.contracts.kl_controllers import KLPenalty
from corerl.contracts.losses import Measure, masked_mean
from corerl.contracts.rollout_correctors import Correction, NoCorrector, RolloutCorrector
from corerl.contracts.throughput import ModelShape
from corerl.contracts.token_outputs import TokenOutputs
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data.tokenizer import load_tokenizer
from corerl.errors import NonFiniteError
from corerl.objective import estimate, loss_weights
from corerl.registry.parts import resolve_parts
from corerl.rollout.scored import ScoredRollouts
from corerl.telemetry.metrics import merge_means
from corerl.terminal.notices import say
from corerl.trainer.nonfinite import NonFiniteGuard
from corerl.trainer.workers import plugins_of


@dataclasses.dataclass
class Batch:
    """The rows of one step after another; :meth:`take` begins a step, and :meth:`end` frees its rows.

    A caller may be in another process: it gets numbers, and handles of rows that models take (``keeps``).

    Attributes:
        scored, experience: the responses of the step, and the tensors of their rows.
        correction: by rollout correction, once the advantages are estimated.
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
    unsaid: list[str] = dataclasses.field(default_factory=list)
    _cut: Experience = dataclasses.field(init=False)

    @dispatch("rank_zero")
    def take(self, scored: ScoredRollouts) -> RowNumbers:
        """Begin a step with these responses."""
        self.scored, self.correction = scored, None
        self.experience = self._cut = scored.experience()
        return self.experience.numbers()

    @dispatch("rank_zero", keeps=True)
    def tokens(self) -> Experience:
        """What models read of all rows."""
        return self.experience.tokens()

    @dispatch("rank_zero")
    def put(self, role: Literal["actor", "ref", "critic"], outputs: TokenOutputs | None) -> dict[str, float]:
        """Take the outputs of a model before the update; metrics. None: the engine's log-probs are the policy's."""
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
                return merge_means([{"entropy": masked_mean(outputs.entropy, experience.response_mask)}], "actor")
        return {}

    @dispatch("rank_zero")
    def estimate(self, step: int, lag: int, penalty: KLPenalty | None = None) -> tuple[RowNumbers, dict[str, float]]:
        """Estimate advantages of the rewards, less the KL penalty; the rows without samples left out, and metrics.

        Args:
            lag: largest staleness of the responses.

        Raises:
            NonFiniteError: there are samples with a number that is not finite, and they are not to be skipped.
            RunError: engine and trainer disagree.
        """
        batch, experience = self.scored, self.experience
        masked = self.guard.mask_samples(step, experience, batch)
        metrics = {} if penalty is None else penalty.subtract(experience)
        self.correction, measured = self.corrector.of_batch(experience, lag)
        metrics |= merge_means([measured], "rollout_corr")
        weights = self.corrector.weights(self.correction)
        estimated = estimate(self.estimator, experience, batch.components(), weights, batch.turns())
        experience.advantages, experience.returns = estimated
        masked += self.guard.mask_samples(step, experience, batch)
        return experience.numbers(), metrics | {"training/nonfinite_samples": float(masked)}

    @dispatch("rank_zero")
    def measure(self) -> dict[str, float]:
        """Metrics of plugins."""
        given: list[Mapping[str, Measure | float]] = self.hook.step_metrics(
            experience=self.experience,
            results=self.scored.results,
            truncated=self.scored.rollouts.truncated,
            max_prompt_length=self.config.data.max_prompt_length,
        )
        found = {name: each for metrics in given for name, each in metrics.items()}
        return {name: float(each) if isinstance(each, int | float) else each.value for name, each in found.items()}

    @dispatch("rank_zero")
    def correct(self, *, drops: bool) -> RowNumbers:
        """Make the batch that of the policy: rejected tokens are not trained.

        Args:
            drops: neither are prompts without an advantage.
        """
        self.corrector.apply(self.correction, self.experience)
        numbers = self.experience.numbers()
        if not drops:
            return numbers
        kept = in_prompts(numbers.has_advantage, numbers.group_ids)
        mask = self.experience.response_mask & kept[:, None]
        self._cut = dataclasses.replace(self.experience, response_mask=mask)
        return self._cut.numbers()

    @dispatch("rank_zero", keeps=True)
    def mini_batch(self, rows: Tensor, loss_agg_mode: str) -> Experience:
        """These rows, with the loss weights of their own tokens."""
        mini_batch = self._cut.select(rows)
        weigh(mini_batch, self.config, loss_agg_mode)
        return mini_batch

    @dispatch("rank_zero")
    def refuse(self, step: int, error: NonFiniteError, rows: Sequence[int]) -> None:
        """Save the rows of an update that is not finite.

        Raises:
            NonFiniteError: ``trainer.on_nonfinite`` is not ``skip``.
        """
        self.guard.handle(step, error, rows, self.experience, self.scored)

    @dispatch("rank_zero")
    def write_rollouts(self, path: Path) -> str | None:
        """Write the responses by a plugin; None, or why they are not written."""
        try:
            written = self.hook.write_rollouts(
                path=path,
                rollouts=self.scored.rollouts,
                results=self.scored.results,
                experience=self.experience,
                tokenizer=self.tokenizer,
                token_rows=self.config.trainer.log_rollouts_tokens,
            )
        except OSError as error:
            return f"the sample rollouts could not be written: {error}"
        return None if written else "no plugin writes the sample rollouts (pip install corerl-tools)"

    @dispatch("rank_zero")
    def end(self) -> list[str]:
        """Free the rows of the step; lines for the terminal that this process could not print."""
        del self.scored, self.experience, self._cut
        lines, self.correction, self.unsaid[:] = [*self.unsaid], None, []
        return lines


class BatchWorker(Batch):
    """The batch in a process of its own, with parts of its own."""

    def __init__(self, config: TrainConfig, folder: Path, shape: ModelShape) -> None:
        plugins = plugins_of(config)
        guard = make_guard(config, folder, plugins.hook)
        super().__init__(
            config,
            plugins.hook,
            load_tokenizer(config.model, plugins),
            resolve_parts(config, plugins.registries).adv_estimator.load(),
            make_corrector(config, plugins.hook, shape),
            guard,
        )
        guard.say = self.unsaid.append


def make_guard(config: TrainConfig, folder: Path, hook: pluggy.HookRelay) -> NonFiniteGuard:
    """That of a run in this folder."""
    return NonFiniteGuard(folder / "nonfinite", config.trainer.on_nonfinite == "skip", hook)


def make_corrector(config: TrainConfig, hook: pluggy.HookRelay, shape: ModelShape) -> RolloutCorrector:
    """That of a plugin; without one, nothing is corrected, and a line is printed."""
    made: RolloutCorrector | None = hook.make_rollout_corrector(config=config, shape=shape)
    if made is None:
        say("log-probs of engine and trainer are not compared: pip install corerl-correction")
    return made or NoCorrector()


def weigh(mini_batch: Experience, config: TrainConfig, loss_agg_mode: str) -> None:
    """Set the loss weights of a mini-batch."""
    scale_factor = config.actor.loss_scale_factor or config.data.max_response_length
    mask, episodes, groups = mini_batch.response_mask, mini_batch.episode_ids, mini_batch.group_ids
    mini_batch.loss_weights = loss_weights(mask, loss_agg_mode, scale_factor, episodes, groups)
