"""A run: its configuration, the parts it uses and its folder."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from corerl.checkpoint.resume import NAME, RECORD, read_record, started
from corerl.contracts.config import TrainConfig
from corerl.files import atomic_path, unused
from corerl.plugins import Plugins
from corerl.registry.parts import Parts


@dataclass(frozen=True)
class Run:
    """What life-cycle hooks are given.

    Attributes:
        folder: ``<output_dir>/<experiment_name>/<time>``.
        digests: of what it reads (:mod:`corerl.checkpoint.identity`).
    """

    config: TrainConfig
    parts: Parts
    plugins: Plugins
    folder: Path
    digests: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> None:
        """Write ``config.yaml``; a copy of a run's folder that is trained further is a run that starts now."""
        from omegaconf import OmegaConf

        if not started(self.folder.name, read_record(self.folder))[2]:
            _record(self.folder)
        with atomic_path(self.folder / "config.yaml") as temporary:
            temporary.write_text(OmegaConf.to_yaml(OmegaConf.create(asdict(self.config))))


def new_folder(config: TrainConfig) -> Path:
    """Make the folder of a run that starts now, named by its time; a name that is taken gets a number."""
    base = Path(config.trainer.output_dir).expanduser() / config.tracking.experiment_name
    while True:
        folder = unused(base / time.strftime(NAME))
        with suppress(FileExistsError):  # of another run, at the same moment
            folder.mkdir(parents=True)
            _record(folder)
            return folder


def _record(folder: Path) -> None:
    with atomic_path(folder / RECORD) as temporary:
        temporary.write_text(json.dumps({"name": folder.name, "started": datetime.now(UTC).isoformat()}) + "\n")
