"""Files in a folder that somebody else has written: no link is followed, nothing but a plain file is read."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from corerl_rewards.folders import remove_folder

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def read_within(folder: Path, path: str, most: int) -> bytes | None:
    """The content of a file; None if it is no plain file within the folder, or is longer than ``most`` bytes."""
    with contextlib.suppress(OSError), _parent(folder, path, make=False) as (parent, name):
        descriptor = os.open(name, _READ, dir_fd=parent)
        with os.fdopen(descriptor, "rb") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                content = file.read(most + 1)
                return content if len(content) <= most else None
    return None


def write_within(folder: Path, path: str, text: str) -> None:
    """Write a file anew; links and other things in its way are removed.

    Raises:
        OSError: it cannot be written.
    """
    with _parent(folder, path, make=True) as (parent, name):
        _clear(name, parent)
        mode = 0o755 if text.startswith("#!") else 0o644
        with os.fdopen(os.open(name, _NEW, mode, dir_fd=parent), "w", encoding="utf-8", newline="") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)


@contextlib.contextmanager
def _parent(folder: Path, path: str, *, make: bool) -> Iterator[tuple[int, str]]:
    """(the descriptor of a path's folder, the name in it)."""
    *names, last = PurePosixPath(path).parts
    descriptor = os.open(folder, _FOLDER)
    try:
        for name in names:
            inner = _enter(name, descriptor, make)
            os.close(descriptor)
            descriptor = inner
        yield descriptor, last
    finally:
        os.close(descriptor)


def _enter(name: str, parent: int, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except OSError:
        if not make:
            raise
    _clear(name, parent)
    os.mkdir(name, 0o755, dir_fd=parent)
    return os.open(name, _FOLDER, dir_fd=parent)


def _clear(name: str, parent: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        try:
            os.unlink(name, dir_fd=parent)
        except (IsADirectoryError, PermissionError):
            remove_folder(f"/proc/self/fd/{parent}/{name}")
