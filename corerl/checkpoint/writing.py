"""Errors while a checkpoint is written, in words, also of ranks that write in the background."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from corerl.errors import CoreRLError, SaveError, Stopped
from corerl.files import remove, room

LONGEST_ERROR = 2000


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A block that writes a checkpoint; libraries have exceptions of their own for a full disk.

    Raises:
        SaveError: the block raised an exception.
    """
    try:
        yield
    except (CoreRLError, Stopped, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # torch's CheckpointException is no Exception
        raise SaveError(f"{path} could not be written: {described(error)}; {room(path.parent)}") from error


def write_and_report(write: Callable[[], None], path: Path) -> None:
    """Write, then leave a file: empty, or with the error. Its room is taken before, because the disk may be full."""
    error, report = b"", path.with_name(f"{path.name}.tmp")
    with contextlib.suppress(OSError):  # the folder is gone once nobody waits
        report.write_bytes(b" " * LONGEST_ERROR)
        try:
            write()
        except BaseException as raised:  # torch's CheckpointException is no Exception
            error = described(raised).encode()[:LONGEST_ERROR]
        with report.open("r+b") as file:
            file.write(error)
            file.truncate()
        report.rename(path)
        return
    with contextlib.suppress(OSError):  # other ranks may do the same
        remove(path.parent)  # without the report nobody must wait


def described(error: BaseException) -> str:
    """The error in one line, with its kind unless it is an OSError."""
    text = " ".join(str(error).split())
    return text if isinstance(error, OSError) else f"{type(error).__name__}: {text}"
