"""The folder of an episode, made from its task."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corerl.contracts.agents import Task
from corerl.errors import DataError
from corerl_harness.options import HarnessOptions, escapes
from corerl_rewards.folders import remove_folder

MOST_BYTES = 256 << 20
"""of the files of one task"""


@dataclass(frozen=True)
class Folder:
    """The folders of an episode.

    Attributes:
        root: holds the others; only the run's user reads it.
        work: where the command starts.
        temporary: for files that commands do not keep.
        tests, logs: of a task in Harbor's format; ``tests`` is empty until the check.
    """

    root: Path
    work: Path
    temporary: Path
    tests: Path
    logs: Path

    def remove(self) -> None:
        """Remove all of it."""
        remove_folder(self.root)

    def stage_tests(self, source: Path, user: int | None) -> None:
        """Show the tests of a Harbor task, and forget what the agent wrote in the place of their reward."""
        shutil.copytree(source, self.tests, dirs_exist_ok=True)
        verifier = self.logs / "verifier"
        remove_folder(verifier)
        verifier.mkdir()
        if user is not None:
            os.chown(verifier, user, user)


def make_folder(task: Task, options: HarnessOptions) -> Folder:
    """Make the folder of an episode, with the files of ``extra_info.files``, of ``extra_info.harbor`` and the prompt.

    Raises:
        DataError: a file of the task has no place in the folder.
    """
    root = Path(tempfile.mkdtemp(prefix="corerl-episode-", dir=options.folders))
    folder = Folder(root, root / "work", root / "tmp", root / "tests", root / "logs")
    try:
        for each in (folder.work, folder.temporary, folder.tests, folder.logs / "verifier", folder.logs / "agent"):
            each.mkdir(parents=True)
        copy_files(options.files, folder.work)
        if (source := task.extra_info.get("harbor")) and options.isolation not in ("docker", "podman"):
            copy_environment(Path(source), folder.work)
        write_files(read_files(task.extra_info.get("files"), "files"), folder.work)
        if options.prompt_file:
            write_files({options.prompt_file: prompt_of(task.messages)}, folder.work)
        if options.user is not None:
            hand_over(folder, options.user)
    except BaseException:
        folder.remove()
        raise
    return folder


def read_files(value: Any, key: str) -> dict[str, str]:
    """The files of a row: a mapping of paths to texts, its JSON, or a list of ``{path, text}``; nulls are left out.

    Raises:
        DataError: the value has another shape, or a path leads out of the folder.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise DataError(f"extra_info.{key} is no JSON: {error}") from error
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = {each.get("path"): each.get("text") for each in value if isinstance(each, Mapping)}
    if value is not None and not isinstance(value, Mapping):
        raise DataError(f"extra_info.{key} should map paths to texts, found {type(value).__name__}")
    files = {path: text for path, text in (value or {}).items() if text is not None}
    for path, text in files.items():
        if not isinstance(path, str) or not isinstance(text, str):
            raise DataError(f"extra_info.{key} should map paths to texts, found {path!r}: {type(text).__name__}")
        if escapes(path):
            raise DataError(f"extra_info.{key} names {path!r}, which is no path within the folder")
    if sum(map(len, files.values())) > MOST_BYTES:
        raise DataError(f"extra_info.{key} holds more than {MOST_BYTES >> 20} MiB")
    return files


def write_files(files: Mapping[str, str], folder: Path) -> None:
    """Write texts into a folder that no command has used yet; a text that begins with ``#!`` becomes a program.

    Raises:
        DataError: two paths exclude each other.
    """
    for path, text in files.items():
        target = folder / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
            target.chmod(0o755 if text.startswith("#!") else 0o644)
        except (OSError, UnicodeError) as error:
            raise DataError(f"the file {path!r} of a task cannot be written: {error}") from error


def prompt_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """The texts of a prompt's messages, one below the other."""
    return "\n\n".join(filter(None, (_text(message.get("content")) for message in messages))) + "\n"


def copy_files(files: Mapping[str, str], work: Path) -> None:
    """Copy files and folders of this machine; a link becomes what it points to."""
    for path, source in files.items():
        target = work / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if Path(source).is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copy(source, target)


def copy_environment(task: Path, work: Path) -> None:
    """Copy the files of a Harbor task's ``environment``, without those that build its image.

    Raises:
        DataError: the task has no such folder any more.
    """
    source = task / "environment"
    if not source.is_dir():
        raise DataError(f"the task {task} has no folder 'environment': prepare the data again")
    shutil.copytree(source, work, symlinks=True, dirs_exist_ok=True, ignore=_image_files(source))


def _image_files(top: Path) -> Any:
    def left_out(folder: str, names: list[str]) -> list[str]:
        at_top = Path(folder) == top
        return [name for name in names if at_top and (name == "Dockerfile" or name.startswith("docker-compose"))]

    return left_out


def hand_over(folder: Folder, user: int) -> None:
    """Give the contents to the user that runs the command; the folder of tests stays the run's own."""
    folder.root.chmod(0o711)
    for top in (folder.work, folder.temporary, folder.logs):
        for path in _entries(top):
            os.chown(path, user, user, follow_symlinks=False)


def _entries(top: Path) -> Iterator[Path]:
    yield top
    for parent, folders, files in os.walk(top):
        yield from (Path(parent) / name for name in (*folders, *files))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content or () if isinstance(part, Mapping))
