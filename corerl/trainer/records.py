"""What a run writes beside its configuration."""

from dataclasses import dataclass, field

from corerl.checkpoint.store import CheckpointStore
from corerl.telemetry.metrics_log import MetricsLog
from corerl.terminal.notices import Recurring
from corerl.trainer.batch import Batch
from corerl.trainer.run import Run


@dataclass(frozen=True)
class Records:
    """Metrics, checkpoints and sample rollouts."""

    run: Run
    log: MetricsLog
    checkpoints: CheckpointStore
    recurring: Recurring = field(default_factory=Recurring)

    def write_rollouts(self, step: int, batch: Batch) -> None:
        """Write the batch as ``rollouts/step_N.parquet`` by a plugin; the run continues if this fails."""
        if notice := batch.write_rollouts(self.run.folder / "rollouts" / f"step_{step:06d}.parquet"):
            self.recurring("rollouts", f"step {step}: {notice}")
