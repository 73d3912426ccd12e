"""The rows of a step, or of a shard of it, in a process of their own."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from corerl.contracts.config import TrainConfig
from corerl.contracts.experience import Experience, RowNumbers
from corerl.contracts.losses import Measure
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.throughput import ModelShape
from corerl.data.tokenizer import load_tokenizer
from corerl.errors import NonFiniteError
from corerl.registry.parts import resolve_parts
from corerl.rollout.scored import ScoredRollouts
from corerl.terminal.notices import Recurring
from corerl.trainer.batch import Batch, make_corrector, make_guard
from corerl.trainer.workers import plugins_of
from corerl_torch.shards.cut import Part


class Shard(Batch):
    """Whole groups of each step, with parts of its own; rows that it hands on have the step's numbers of groups.

    The methods whose names begin as those of :class:`corerl.trainer.batch.Batch` are called in their place.

    Attributes:
        part: the place of the rows in the step.
        lines: for the terminal, which this process does not have.
        measured_rows: as :meth:`measure_part` has seen them; the policy's are corrected afterwards.
    """

    part: Part
    measured_rows: Experience | None = None

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
        self.lines: list[str] = []
        guard.recurring, guard.number = Recurring(self.lines.append), lambda response: int(self.part.episodes[response])
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # shards that write at the same time
            guard.folder = guard.folder / f"shard_{os.environ['RANK']}"

    def take_part(self, scored: ScoredRollouts, part: Part) -> Experience:
        """Begin a step with these responses; what models read of their rows."""
        self.part = part
        super().take(scored, part.width)
        if part.has_branches and self.experience.episode_ids is None:
            self.experience.episode_ids = torch.arange(len(self.experience))
        return self._numbered(self.experience.tokens())

    def estimate_part(self, step: int, lag: int) -> tuple[RowNumbers, Mapping[str, Measure], list[str]]:
        """Numbers of the rows, measures of the mismatch, lines."""
        return *self.estimate_rows(step, lag), self._take_lines()

    def measure_part(self) -> dict[str, Measure | float]:
        """The metrics so far."""
        self.measured_rows = dataclasses.replace(self.experience)
        return self.measures(self.part.responses)

    def rows_for_floats(self) -> Experience:
        """The rows as measured."""
        assert self.measured_rows is not None
        return self._numbered(self.measured_rows)

    def measure_whole(
        self, experience: Experience, results: Sequence[RewardResult], truncated: Sequence[bool]
    ) -> dict[str, Measure | float]:
        """Metrics of plugins of the whole step."""
        return self.of_plugins(experience, results, truncated, self.part.responses)

    def rows(self) -> Experience:
        return self._numbered(super().rows())

    def correct(self, *, drops: bool) -> Experience:
        return self._numbered(super().correct(drops=drops))

    def refuse_part(self, step: int, error: NonFiniteError, rows: Sequence[int]) -> list[str]:
        """Save rows of the shard; lines."""
        self.refuse(step, error, rows)
        return self._take_lines()

    def end(self) -> None:
        self.measured_rows = None
        super().end()

    def first_rows(self, responses: int) -> Experience:
        return self._numbered(super().first_rows(responses))

    def write_whole(self, path: Path, scored: ScoredRollouts, experience: Experience) -> str | None:
        """As ``write_rollouts``, of the whole step; ``experience``: of the responses with tokens."""
        return self.write(path, scored, experience)

    def _numbered(self, experience: Experience) -> Experience:
        """The rows with the step's numbers of groups and episodes."""
        part, groups, episodes = self.part, experience.group_ids, experience.episode_ids
        return dataclasses.replace(
            experience,
            group_ids=part.groups[groups],
            episode_ids=None if episodes is None else part.episodes[episodes],
        )

    def _take_lines(self) -> list[str]:
        lines, self.lines[:] = [*self.lines], []
        return lines
