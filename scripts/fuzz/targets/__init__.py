"""The readers, and what is made up for each."""

from pathlib import Path
from typing import Any, Protocol

from hypothesis.strategies import SearchStrategy


class Target(Protocol):
    """One reader of what strangers write.

    Attributes:
        seconds: one case may take.
        processes: whether it may start processes, as the sandbox does.
        cases: plain values, so that a report can show one.
    """

    name: str
    seconds: float
    processes: bool
    cases: SearchStrategy[Any]

    def prepare(self, folder: Path) -> None:
        """Make what cases are made from, once."""
        ...

    def read(self, case: Any, folder: Path) -> None:
        """Write the case into an empty folder and read it.

        Raises:
            CoreRLError: it was refused.
        """
        ...


def targets() -> dict[str, Target]:
    """All of them, by name."""
    from scripts.fuzz.targets.checkpoints import Checkpoints
    from scripts.fuzz.targets.configs import Configs
    from scripts.fuzz.targets.data import Data
    from scripts.fuzz.targets.frames import Answers, Operations
    from scripts.fuzz.targets.model_folders import ModelFolders
    from scripts.fuzz.targets.responses import Responses
    from scripts.fuzz.targets.run_folders import RunFolders
    from scripts.fuzz.targets.trained_files import TrainedFiles

    found: list[Target] = [Configs(), Data(), ModelFolders(), Checkpoints(), TrainedFiles(), RunFolders()]
    found += [Answers(), Operations(), Responses()]
    return {target.name: target for target in found}
