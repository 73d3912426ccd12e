"""What a run writes beside its configuration."""

from dataclasses import dataclass

from corerl.checkpoint.store import CheckpointStore
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.telemetry.metrics_log import MetricsLog
from corerl.terminal.notices import say
from corerl.trainer.nonfinite import NonFiniteGuard
from corerl.trainer.run import Run
from corerl.trainer.step import Step


@dataclass(frozen=True)
class SampleRollouts:
    """Responses of a step in ``rollouts/step_N.parquet``, written by the plugin that has the hook."""

    run: Run
    tokenizer: ChatTokenizer

    def write(self, step: Step) -> None:
        """Write the batch; the run continues if this fails."""
        try:
            written = self.run.plugins.hook.write_rollouts(
                path=self.run.folder / "rollouts" / f"step_{step.number:06d}.parquet",
                rollouts=step.batch.rollouts,
                results=step.batch.results,
                experience=step.experience,
                tokenizer=self.tokenizer,
                token_rows=self.run.config.trainer.log_rollouts_tokens,
            )
            if not written:
                say(f"step {step.number}: no plugin writes the sample rollouts (pip install corerl-tools)")
        except OSError as error:
            say(f"step {step.number}: the sample rollouts could not be written: {error}")


@dataclass(frozen=True)
class Records:
    """Metrics, checkpoints, sample rollouts, and samples with numbers that are not finite."""

    log: MetricsLog
    checkpoints: CheckpointStore
    rollouts: SampleRollouts
    nonfinite: NonFiniteGuard
