"""Writing files so that a kill at any instant leaves the last complete one readable."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path: Path, *, folder: bool = False) -> Iterator[Path]:
    """A temporary name beside ``path`` to write to (an empty folder with ``folder``); renamed to ``path`` on success.

    On an exception what was written is removed and ``path`` is as before. An existing ``path`` is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    remove(temporary)
    if folder:
        temporary.mkdir()
    try:
        yield temporary
        if folder:
            remove(path)
        temporary.replace(path)
    except BaseException:
        remove(temporary)
        raise


def remove(path: Path) -> None:
    """Delete a file or a folder if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
