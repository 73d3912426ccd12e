"""Atomic writes; readers of files from others."""

import errno
import itertools
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from corerl.errors import ConfigError, CoreRLError, RequestError

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE)
"""errors of a disk that is full, read-only or gone"""

CAUSES = 20
"""errors behind an error, at most"""

NAME = 200
"""bytes of a folder's name at most: a file system takes 255, with what temporary names add"""

REMOVALS = 20
"""attempts to remove a folder that others change"""

LARGEST_TEXT = 256 * 2**20
"""bytes of a text file, at most"""


@contextmanager
def atomic_path(path: Path, *, folder: bool = False, mark: str = "") -> Iterator[Path]:
    """A temporary name beside ``path``, renamed to ``path`` on success and removed after an exception.

    An existing file is replaced at once, an existing folder by two renames.

    Args:
        folder: make an empty folder of the temporary name.
        mark: part of the temporary name, if others may still write to that of an earlier attempt.

    Raises:
        RequestError: a folder is in the place of a file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}{mark}.tmp")
    remove(temporary)
    if folder:
        temporary.mkdir()
    try:
        yield temporary
        if folder:
            set_usual_modes(temporary)
        if folder and path.exists():
            aside = path.with_name(f".{path.name}.old.tmp")
            remove(aside)
            path.rename(aside)
            temporary.rename(path)
            remove(aside)
        elif path.is_dir() and not path.is_symlink():
            raise RequestError(f"{path} is a folder, and a file is to be written in its place: move it away")
        else:
            temporary.replace(path)
    except BaseException:
        remove(temporary)
        raise


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a file from others. Pipes and devices are refused, without a wait for their other end.

    Raises:
        OSError: the file cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return descriptor


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """The text of a file from others.

    Raises:
        OSError: the file cannot be read, is no regular file, or has more than LARGEST_TEXT bytes.
        UnicodeDecodeError: the file has another encoding.
    """
    with os.fdopen(open_regular(path), encoding=encoding) as file:
        if (size := os.fstat(file.fileno()).st_size) > LARGEST_TEXT:
            raise OSError(errno.EOVERFLOW, f"has {size:,} bytes, and {LARGEST_TEXT:,} are read at most", str(path))
        return file.read()


def is_deeper(value: Any, levels: int) -> bool:
    """Whether JSON from others has more levels of lists and objects: code that walks through it would not end well."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return not levels or any(is_deeper(each, levels - 1) for each in inner)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """A block that reads a file or a folder from others.

    Raises:
        RequestError: the file is damaged: the block raised an error that is not of CoreRL, the disk or another file.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, CoreRLError) or (isinstance(error, OSError) and _is_elsewhere(error, path)):
            raise
        reason = " ".join(str(error).splitlines()[0].split())[:300] if str(error) else "cut off or empty"
        raise RequestError(f"{path} is damaged, or not of CoreRL: {type(error).__name__}: {reason}") from error


@contextmanager
def reading_file(path: Path) -> Iterator[Path]:
    """As :func:`reading`, of one regular file, for readers that do not refuse pipes and devices.

    Raises:
        RequestError: the file is damaged, missing, or no regular file.
    """
    try:
        os.close(open_regular(path))
    except OSError as error:
        if error.errno in DISK:
            raise
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    with reading(path):
        yield path


def require_writable(folder: Path, key: str) -> None:
    """Try to write to ``folder``, or to the nearest existing folder above it; nothing is left behind.

    Args:
        key: of the config, which names the folder.

    Raises:
        ConfigError: nothing can be written there.
    """
    absolute = folder.expanduser().absolute()
    present = next(path for path in (absolute, *absolute.parents) if os.path.lexists(path))
    try:
        with tempfile.TemporaryFile(dir=present):
            pass
    except OSError as error:
        reason = f"nothing can be written to {present} ({error.strerror})"
        raise ConfigError(key, f"{folder} cannot be used: {reason}; name a folder of yours") from error


def require_name(name: str, key: str) -> None:
    """Whether a text can be a folder, or folders in each other: printable, of at most NAME bytes each.

    Raises:
        ConfigError: it cannot.
    """
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ConfigError(key, f"{name!r:.100} names a folder elsewhere")
    for part in Path(name).parts:
        if not part.isprintable():
            raise ConfigError(key, f"{name!r:.100} names a folder with a character that cannot be printed")
        if (size := len(os.fsencode(part))) > NAME:
            raise ConfigError(key, f"'{part[:40]}…' names a folder with {size} bytes: at most {NAME} are possible")


def _is_elsewhere(error: OSError, path: Path) -> bool:
    """Whether the error is of the disk, or of a file outside of ``path``."""
    file = error.filename
    outside = isinstance(file, str) and not Path(file).absolute().is_relative_to(path.absolute())
    return error.errno in DISK or outside


def disk_error(error: BaseException) -> BaseException:
    """The error of the disk behind an error of a library, such as torch's writer; otherwise the error itself."""
    found: BaseException | None = error
    for _ in range(CAUSES):
        if found is None or (isinstance(found, OSError) and found.errno in DISK):
            return found or error
        found = found.__cause__ or found.__context__
    return error


def room(path: Path) -> str:
    """The free bytes at a path, for messages; the nearest existing folder is named."""
    folder = next((each for each in (path, *path.absolute().parents) if each.is_dir()), Path("/"))
    try:
        return f"{folder} has {shutil.disk_usage(folder).free:,} bytes free"
    except OSError as error:
        return f"{folder} cannot be read: {error.strerror}"


def remove(path: Path) -> None:
    """Delete a file or a folder if it is there; others may write or delete in the folder meanwhile."""
    for attempt in range(REMOVALS):
        if not path.is_dir() or path.is_symlink():
            path.unlink(missing_ok=True)
            return
        shutil.rmtree(path, ignore_errors=attempt < REMOVALS - 1)


def unused(path: Path) -> Path:
    """``path``, or ``path-2``, ``path-3``, …: the first that does not exist."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], numbered) if not os.path.lexists(each))


def set_usual_modes(folder: Path) -> None:
    """Give the files in a new folder the permissions that the umask allows; safetensors writes for the owner alone."""
    allowed = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with suppress(OSError):  # a file system without modes
                path.chmod(stat.S_IMODE(path.stat().st_mode) | allowed)
