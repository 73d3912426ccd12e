"""Errors while a checkpoint is written, in words, also of ranks that write in the background."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from corerl.errors import CoreRLError, SaveError, Stopped
from corerl.files import disk_error, room

LONGEST_ERROR = 2000

LOST = ".lost"
"""end of the name that a folder of reports gets if a rank cannot write its report"""


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
    try:
        report.write_bytes(b" " * LONGEST_ERROR)
        try:
            write()
        except BaseException as raised:  # torch's CheckpointException is no Exception
            error = described(raised).encode()[:LONGEST_ERROR]
        with report.open("r+b") as file:
            file.write(error)
            file.truncate()
        report.rename(path)
    except OSError:
        with contextlib.suppress(OSError):  # of another rank in the same state, or because nobody waits any more
            path.parent.rename(path.parent.with_name(f"{path.parent.name}{LOST}"))


def described(error: BaseException) -> str:
    """The first line of an error, with its kind unless it is an OSError; of an error with those of ranks, the first."""
    of_ranks: Any = getattr(error, "failures", None)  # torch's CheckpointException: rank -> (error, trace)
    if of_ranks:
        rank, (first, _) = next(iter(of_ranks.items()))
        return f"rank {rank}: {described(first)}"
    error = disk_error(error)
    text = next(iter(str(error).strip().splitlines()), "")
    return text if isinstance(error, OSError) else f"{type(error).__name__}: {text}"
