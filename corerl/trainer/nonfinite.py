"""What happens when something that must be a number is NaN or infinite: ``trainer.on_nonfinite``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pluggy
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.errors import NonFiniteError
from corerl.files import atomic_path, unused
from corerl.rollout.scored import ScoredRollouts
from corerl.terminal.notices import Recurring

TOKEN_VALUES = ("rollout_log_probs", "old_log_probs", "ref_log_probs", "values", "rewards", "advantages", "returns")


@dataclass
class NonFiniteGuard:
    """Names the samples, saves them for study, and ends the run or goes on without them.

    Attributes:
        folder: gets ``step_N/rollouts.parquet`` (text and scores) and ``step_N/experience.safetensors`` (tensors).
        skip: ``trainer.on_nonfinite`` is ``skip``.
        hook: of the run's plugins, one of which writes ``rollouts.parquet``.
        recurring: prints the notices.
        number: of a response of the batch, its number in the step.
    """

    folder: Path
    skip: bool
    hook: pluggy.HookRelay
    recurring: Recurring = field(default_factory=Recurring)
    number: Callable[[int], int] = int

    def mask_samples(self, step: int, experience: Experience, batch: ScoredRollouts) -> int:
        """Take rows with a number that is not finite out of the batch; how many there are.

        Raises:
            NonFiniteError: there are some, and they are not to be skipped.
        """
        reasons = _reasons(experience)
        if not reasons:
            return 0
        rows = sorted({row for rows in reasons.values() for row in rows})
        what = ", ".join(f"{name} of {len(rows)} responses" for name, rows in reasons.items())
        self.handle(step, NonFiniteError(f"not finite: {what}", rows), rows, experience, batch)
        experience.response_mask[rows] = False
        for name in TOKEN_VALUES:
            tensor: Tensor | None = getattr(experience, name)
            if tensor is not None:
                tensor[rows] = 0.0
        return len(rows)

    def handle(
        self, step: int, error: NonFiniteError, rows: Sequence[int], experience: Experience, batch: ScoredRollouts
    ) -> None:
        """Save the samples ``rows`` of the batch; raise ``error`` with their names, or print it and go on.

        Raises:
            NonFiniteError: ``error``, completed.
        """
        if experience.episode_ids is not None:
            named = sorted(set(experience.episode_ids[list(rows)].tolist()))
        else:
            named = list(rows)
        folder = unused(self.folder / f"step_{step:06d}")  # several mini-batches of a step may fail
        where = f"are saved in {folder}"
        try:
            self._write(folder, named, rows, experience, batch)
        except (OSError, SafetensorError) as problem:
            where = f"could not be saved: {problem}"
        names = ", ".join(self._name(batch, sample) for sample in named[:4]) + (", …" if len(named) > 4 else "")
        message = f"{error}; {len(named)} samples ({names}) {where}"
        if not self.skip:
            raise NonFiniteError(f"{message}; trainer.on_nonfinite=skip leaves them out", rows) from error
        self.recurring("nonfinite", f"step {step}: {message}")

    def _name(self, batch: ScoredRollouts, row: int) -> str:
        prompt = batch.rollouts.prompts[row]
        return f"response {self.number(row)} to prompt {prompt.index} of '{prompt.data_source}'"

    def _write(
        self, folder: Path, samples: Sequence[int], rows: Sequence[int], experience: Experience, batch: ScoredRollouts
    ) -> None:
        with atomic_path(folder, folder=True) as temporary:
            chosen = batch.select(samples)
            self.hook.write_rollouts(
                path=temporary / "rollouts.parquet",
                rollouts=chosen.rollouts,
                results=chosen.results,
                experience=None,
                tokenizer=None,
                token_rows=0,
            )
            tensors = experience.select(torch.tensor(rows)).tensors()
            save_file({name: each.contiguous() for name, each in tensors.items()}, temporary / "experience.safetensors")


def _reasons(experience: Experience) -> dict[str, list[int]]:
    """Name of a tensor → rows with a NaN or an infinity at a trained token."""
    reasons = {}
    for name in TOKEN_VALUES:
        tensor: Tensor | None = getattr(experience, name)
        if tensor is not None and not torch.isfinite(tensor.sum()):
            bad = (~torch.isfinite(tensor) & experience.response_mask).any(dim=1)
            if bad.any():
                reasons[name] = bad.nonzero().squeeze(1).tolist()
    return reasons
