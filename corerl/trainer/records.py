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
class Records:
    """Metrics, checkpoints, samples with numbers that are not finite, and sample rollouts."""

    run: Run
    tokenizer: ChatTokenizer
    log: MetricsLog
    checkpoints: CheckpointStore
    nonfinite: NonFiniteGuard

    def write_rollouts(self, step: Step) -> None:
        """Write the batch as ``rollouts/step_N.parquet`` by a plugin; the run continues if this fails."""
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
