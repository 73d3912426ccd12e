"""Remove a folder with any contents."""

import contextlib
import errno
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE = 0o700
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


def remove_folder(folder: str | Path, seconds: float = 300.0) -> bool:
    """Remove a folder and its contents, and report whether the folder is gone.

    No symbolic link is followed. Depth is unlimited: a folder within a folder is moved to the top before it is emptied,
    so neither the stack, nor the number of descriptors, nor the length of a path grows with the depth.

    Args:
        folder: may be a link or missing; a link is removed, its target is not touched.
        seconds: limit by the clock; an entry that cannot be removed does not end the call earlier.
    """
    try:
        top = _open(os.fspath(folder), None)
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return _unlink(os.fspath(folder), None)
    except OSError:
        return False
    try:
        _empty(top, time.monotonic() + seconds)
    finally:
        os.close(top)
    return _rmdir(os.fspath(folder), None)


def _empty(top: int, deadline: float) -> None:
    """Remove the entries of a folder until it is empty, or no entry can be removed."""
    numbers = itertools.count()
    before: list[str] = []
    while (names := os.listdir(top)) and names != before:
        before = list(names)
        while names and time.monotonic() < deadline:
            name = names.pop()
            if not _unlink(name, top):
                names += _flatten(name, top, numbers)


def _flatten(name: str, top: int, numbers: Iterator[int]) -> list[str]:
    """Remove one folder of ``top``; move its subfolders to ``top`` and return their new names."""
    try:
        inner = _open(name, top)
    except OSError:
        return []
    moved = []
    try:
        for child in os.listdir(inner):  # noqa: PTH208 - a descriptor
            if not _unlink(child, inner) and (new := _lift(child, inner, top, numbers)):
                moved.append(new)
    finally:
        os.close(inner)
    _rmdir(name, top)
    return moved


def _lift(child: str, inner: int, top: int, numbers: Iterator[int]) -> str | None:
    """Move a folder to ``top`` under a new name; None if it cannot be moved."""
    unlocked = False
    for number in numbers:
        new = f"{number}.removed"
        try:
            os.rename(child, new, src_dir_fd=inner, dst_dir_fd=top)
        except OSError as error:
            if error.errno in _TAKEN:
                continue
            if error.errno != errno.EACCES or unlocked:
                return None
            with contextlib.suppress(OSError):
                _unlock(child, inner)  # moving a folder needs write permission in it
            unlocked = True
        else:
            return new
    return None


def _open(name: str, parent: int | None) -> int:
    """A folder's descriptor; its mode is changed so that its entries can be removed.

    Raises:
        OSError: there is no such folder, or it is a link.
    """
    try:
        descriptor = os.open(name, _FOLDER, dir_fd=parent)
    except PermissionError:
        _unlock(name, parent)
        descriptor = os.open(name, _FOLDER, dir_fd=parent)
    if os.fstat(descriptor).st_mode & _MODE != _MODE:
        os.fchmod(descriptor, _MODE)
    return descriptor


def _unlock(name: str, parent: int | None) -> None:
    """Change the mode of a folder that cannot be opened; never the mode of a link's target."""
    if not hasattr(os, "O_PATH"):
        os.chmod(name, _MODE, dir_fd=parent, follow_symlinks=False)
        return
    place = os.open(name, _FOLDER | os.O_PATH, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{place}", _MODE)  # noqa: PTH101 - the folder itself, even if its name has become a link
    finally:
        os.close(place)


def _unlink(name: str, parent: int | None) -> bool:
    """Whether an entry was removed, or was missing; a folder is not removed."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _rmdir(name: str, parent: int | None) -> bool:
    try:
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
