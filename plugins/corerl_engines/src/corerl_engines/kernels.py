"""The folder of the kernels that torch compiles for engines: one engine's serve the next."""

import contextlib
import os
import stat
import tempfile
from pathlib import Path

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""of torch; without it an engine compiles into its own folder"""


def kept() -> dict[str, str]:
    """The variable, if there is a folder that nobody else can write to: torch runs what it finds there."""
    if VARIABLE in os.environ:
        return {VARIABLE: os.environ[VARIABLE]}
    folder = Path(tempfile.gettempdir()) / f"torchinductor_uid_{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    facts = folder.lstat()
    is_own = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o022
    return {VARIABLE: str(folder)} if is_own else {}
