"""How a rank that writes in the background tells the controller that it is done."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from corerl.files import atomic_path


def write_and_tell(write: Callable[[], None], path: Path) -> None:
    """Write, then leave a file: empty, or with what went wrong."""
    error = ""
    try:
        write()
    except Exception as raised:  # of whatever library writes: told to the controller, which decides
        error = f"{type(raised).__name__}: {raised}"
    with contextlib.suppress(OSError), atomic_path(path) as temporary:  # the folder is gone once nobody waits
        temporary.write_text(error)
