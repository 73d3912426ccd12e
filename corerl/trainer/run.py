"""A run: its configuration, the parts it uses and its folder."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path

from corerl.contracts.config import TrainConfig
from corerl.files import atomic_path, unused
from corerl.plugins import Plugins
from corerl.registry.parts import Parts


@dataclass(frozen=True)
class Run:
    """What life-cycle hooks are given.

    Attributes:
        folder: ``<output_dir>/<experiment_name>/<time>``.
    """

    config: TrainConfig
    parts: Parts
    plugins: Plugins
    folder: Path

    def describe(self) -> None:
        """Write ``config.yaml``."""
        from omegaconf import OmegaConf

        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_path(self.folder / "config.yaml") as temporary:
            temporary.write_text(OmegaConf.to_yaml(OmegaConf.create(asdict(self.config))))


def new_folder(config: TrainConfig) -> Path:
    """A folder name for a run that starts now; it does not exist yet."""
    base = Path(config.trainer.output_dir).expanduser() / config.tracking.experiment_name
    return unused(base / time.strftime("%Y%m%d-%H%M%S"))
