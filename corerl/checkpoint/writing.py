"""What goes wrong while a checkpoint is written, in words, also of a rank that writes in the background."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from corerl.errors import CoreRLError, SaveError
from corerl.files import atomic_path


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Of a full disk every library makes an exception of its own, not all of them OSErrors.

    Raises:
        SaveError: whatever was raised within.
    """
    try:
        yield
    except CoreRLError:
        raise
    except Exception as error:
        raise SaveError(f"{path} could not be written: {described(error)}") from error


def write_and_tell(write: Callable[[], None], path: Path) -> None:
    """Write, then leave a file: empty, or with what went wrong."""
    error = ""
    try:
        write()
    except Exception as raised:
        error = described(raised)
    with contextlib.suppress(OSError), atomic_path(path) as temporary:  # the folder is gone once nobody waits
        temporary.write_text(error)


def described(error: Exception) -> str:
    """In a line; OSErrors say themselves what they are."""
    text = " ".join(str(error).split())
    return text if isinstance(error, OSError) else f"{type(error).__name__}: {text}"
