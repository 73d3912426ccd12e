"""Reads tasks in Harbor's format: a folder with task.toml, instruction.md, environment/ and tests/test.sh."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corerl.errors import DataError
from corerl.files import read_text


@dataclass(frozen=True)
class HarborTask:
    """One task.

    Attributes:
        folder: absolute.
        instruction: the prompt.
        agent_seconds, check_seconds: its deadlines, of the agent and of its tests; None: those of the run.
        image: that it names; None: it has a Dockerfile, or none.
        has_dockerfile: ``environment/Dockerfile`` is there.
        passes_variables: task.toml has variables for the container, which are not passed.
    """

    folder: Path
    instruction: str
    agent_seconds: float | None
    check_seconds: float | None
    image: str | None
    has_dockerfile: bool
    passes_variables: bool

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name


def task_folders(folder: Path) -> Iterator[Path]:
    """The tasks in a folder, by name; the folder itself if it is one.

    Raises:
        DataError: there is none.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder '{folder}'")
    found = [folder] if (folder / "task.toml").is_file() else sorted(path.parent for path in folder.glob("*/task.toml"))
    if not found:
        raise DataError(f"'{folder}' holds no task: a task is a folder with a file task.toml")
    yield from (path.resolve() for path in found)


def read_task(folder: Path) -> HarborTask:
    """One task.

    Raises:
        DataError: a file is missing, or has another shape.
    """
    file = folder / "task.toml"
    try:
        settings = tomllib.loads(read_text(file))
    except ValueError as error:
        raise DataError(f"{file}: {error}") from error
    if "steps" in settings:
        raise DataError(f"{file}: tasks of several steps are not supported")
    for needed in ("tests/test.sh", "environment", "instruction.md"):
        if not (folder / needed).exists():
            raise DataError(f"the task '{folder}' has no '{needed}'")
    agent, verifier, environment = (_table(settings, name, file) for name in ("agent", "verifier", "environment"))
    image = environment.get("docker_image")
    if image is not None and not isinstance(image, str):
        raise DataError(f"{file}: environment.docker_image should be a text, found {image!r}")
    return HarborTask(
        folder,
        read_text(folder / "instruction.md").strip(),
        _seconds(agent, "agent", file),
        _seconds(verifier, "verifier", file),
        image,
        (folder / "environment" / "Dockerfile").is_file(),
        any(table.get("env") for table in (agent, verifier, environment)),
    )


def _table(settings: Mapping[str, Any], name: str, file: Path) -> Mapping[str, Any]:
    table = settings.get(name, {})
    if not isinstance(table, Mapping):
        raise DataError(f"{file}: {name} should be a table, found {table!r}")
    return table


def _seconds(table: Mapping[str, Any], name: str, file: Path) -> float | None:
    value = table.get("timeout_sec")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        raise DataError(f"{file}: {name}.timeout_sec should be a positive number, found {value!r}")
    return float(value)
