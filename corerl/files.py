"""Writing files so that a kill at any instant leaves the last complete one readable; reading those of strangers."""

import errno
import itertools
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from corerl.errors import ConfigError, CoreRLError, RequestError

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE)
"""what a disk says that is full, cannot be written, or is gone"""

LARGEST_TEXT = 256 * 2**20
"""bytes of a file that is read at once"""


@contextmanager
def atomic_path(path: Path, *, folder: bool = False) -> Iterator[Path]:
    """A temporary name beside ``path`` to write to (an empty folder with ``folder``); renamed to ``path`` on success.

    On an exception what was written is removed and ``path`` is as before. An existing file is replaced at once, an
    existing folder by two renames.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    remove(temporary)
    if folder:
        temporary.mkdir()
    try:
        yield temporary
        if folder and path.exists():
            aside = path.with_name(f".{path.name}.old.tmp")
            remove(aside)
            path.rename(aside)
            temporary.rename(path)
            remove(aside)
        else:
            temporary.replace(path)
    except BaseException:
        remove(temporary)
        raise


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a file that anybody may have written: a pipe does not wait for its other end, and a device that
    has no end is not read.

    Raises:
        OSError: it cannot be opened, or is no regular file.
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
    """The text of a file that anybody may have written.

    Raises:
        OSError: it cannot be read, is no regular file, or has more than LARGEST_TEXT bytes.
        UnicodeDecodeError: it has another encoding.
    """
    with os.fdopen(open_regular(path), encoding=encoding) as file:
        if (size := os.fstat(file.fileno()).st_size) > LARGEST_TEXT:
            raise OSError(errno.EOVERFLOW, f"has {size:,} bytes, and {LARGEST_TEXT:,} are read at most", str(path))
        return file.read()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """A block that reads a file or a folder which anybody may have written.

    Raises:
        RequestError: the block raised what is not CoreRL's own, not of the disk and not of another file: the file is
            damaged.
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
    """As :func:`reading`, of one file, for readers that would wait for a pipe or read a device without end.

    Raises:
        RequestError: also if the file is missing or no regular one.
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
    """Try to write to ``folder`` or, while it is not there, to the nearest folder above it; nothing is left behind.

    Raises:
        ConfigError: nothing can be written there; ``key`` is the one that names the folder.
    """
    absolute = folder.expanduser().absolute()
    present = next(path for path in (absolute, *absolute.parents) if os.path.lexists(path))
    try:
        with tempfile.TemporaryFile(dir=present):
            pass
    except OSError as error:
        reason = f"nothing can be written to {present} ({error.strerror})"
        raise ConfigError(key, f"{folder} cannot be used: {reason}; name a folder of yours") from error


def _is_elsewhere(error: OSError, path: Path) -> bool:
    """Whether it is of the disk, or of a file that is not below ``path``."""
    file = error.filename
    outside = isinstance(file, str) and not Path(file).absolute().is_relative_to(path.absolute())
    return error.errno in DISK or outside


def room(path: Path) -> str:
    """How many bytes are free at a path, for messages of a disk; the nearest folder that is there is named."""
    folder = next((each for each in (path, *path.absolute().parents) if each.is_dir()), Path("/"))
    try:
        return f"{folder} has {shutil.disk_usage(folder).free:,} bytes free"
    except OSError as error:
        return f"{folder} cannot be read: {error.strerror}"


def remove(path: Path) -> None:
    """Delete a file or a folder if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def unused(path: Path) -> Path:
    """``path``, or ``path-2``, ``path-3``, …: the first that does not exist."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], numbered) if not each.exists())
