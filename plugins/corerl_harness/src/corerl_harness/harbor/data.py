"""``corerl prepare harbor``: a folder of tasks as rows for the agent ``harness``."""

import hashlib
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from corerl import option
from corerl.errors import DataError
from corerl_harness.harbor.tasks import HarborTask, read_task, task_folders
from corerl_tools.prepare.contract import PromptRow

BUILD_SECONDS = 1800.0


@dataclass(frozen=True)
class HarborOptions:
    """Options of the data set preparer ``harbor``."""

    path: str = option(help="folder of tasks, or a folder with such folders train and test")
    data_source: str = option("harbor", "column data_source of all rows")
    build: Literal["docker", "podman"] | None = option(None, "builds the images of the tasks' Dockerfiles")


class HarborData:
    """The rows refer to the tasks' folders, which must stay at their place."""

    def __init__(self, options: HarborOptions) -> None:
        self._options = options

    def generate(self) -> Mapping[str, Iterable[PromptRow]]:
        """The splits: train and test if the folder has both, else train.

        Raises:
            DataError: a task is damaged, or its image cannot be built.
        """
        top = Path(self._options.path)
        parts = {name: top / name for name in ("train", "test") if (top / name).is_dir()}
        if "train" not in parts or any((folder / "task.toml").is_file() for folder in parts.values()):
            parts = {"train": top}
        return {name: [self._row(read_task(folder)) for folder in task_folders(part)] for name, part in parts.items()}

    def _row(self, task: HarborTask) -> PromptRow:
        image, notes = task.image, []
        if image is None and task.has_dockerfile:
            if self._options.build:
                image = build(task, self._options.build)
            else:
                notes.append("its Dockerfile is not built")
        if task.passes_variables:
            notes.append("variables of its task.toml are not passed")
        return PromptRow(
            data_source=self._options.data_source,
            prompt=[{"role": "user", "content": task.instruction}],
            ability="agent",
            ground_truth=task.name,
            extra_info={
                "harbor": str(task.folder),
                "image": image,
                "agent_seconds": task.agent_seconds,
                "check_seconds": task.check_seconds,
            },
            note="; ".join(notes),
        )


def build(task: HarborTask, runtime: str) -> str:
    """Build the image of a task's Dockerfile; an unchanged folder has an unchanged name.

    Raises:
        DataError: it cannot be built.
    """
    source = task.folder / "environment"
    image = f"corerl-harbor/{_tag(task.name)}:{_content(source)}"
    line = [runtime, "build", "--tag", image, str(source)]
    try:
        ended = subprocess.run(line, capture_output=True, timeout=BUILD_SECONDS, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"the image of '{task.folder}' cannot be built: {error}") from error
    if ended.returncode:
        reason = ended.stderr.decode(errors="replace").strip()[-500:]
        raise DataError(f"the image of '{task.folder}' cannot be built: {reason}")
    return image


def _tag(name: str) -> str:
    return (
        "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower()).strip("-")
        or "task"
    )


def _content(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)}\0{path.stat().st_mode & 0o111}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
