"""The output of an engine: quoted by errors, and kept if an error names it."""

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

KEPT = 20
"""number of logs kept in a folder, the newest"""

MOST_BYTES = 32 * 2**20
"""bytes at the end of a log that are read or kept"""

NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

LOG_LINES = 8
LINE_LENGTH = 600
CAUSE = re.compile(
    r"^(?:.*?\s)?(?:\w+\.)*\w*(?:Error|Exception|Interrupt): .+$|^(?:\(.*?\) )?(?:ERROR .*\] )?\w*(?:Error|Exception)$"
)
CONSEQUENCES = (
    "Engine core initialization failed",
    "EngineDeadError",
    "EngineCore encountered",
    "see root cause",
    "Worker failed with error",
    "the engine's core is dead",
)


class EngineLog:
    """A log file in the engine's own folder, which may be removed at any time; this object keeps the file open.

    Args:
        path: of a file that does not exist yet.
        keep_in: folder for copies of logs named in errors; it holds the newest ``KEPT``.
        name: of the engine; prefix of the copy's name.
    """

    def __init__(self, path: Path, keep_in: Path, name: str) -> None:
        self.file: IO[bytes] = os.fdopen(os.open(path, os.O_RDWR | NEW_FILE, 0o600), "wb")
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self._kept = keep_in.expanduser() / f"{name}-{stamp}-{path.parent.name.rpartition('-')[2]}.log"
        self._named = False

    def last_lines(self) -> str:
        """The line with the likely cause, the last lines, and the path of the log."""
        where = self.kept_path()
        if self.file.closed:
            return f"its log: {where}"
        lines = self._read().decode(errors="replace").splitlines()
        lines = [line.rstrip()[:LINE_LENGTH] for line in lines if line.strip()]
        causes = [
            match[0] for line in lines if (match := CAUSE.match(line)) and not any(c in line for c in CONSEQUENCES)
        ]
        tail = "\n  ".join(lines[-LOG_LINES:])
        cause = f"the last error in its log: {causes[-1].strip()}; " if causes else ""
        return f"{cause}the last lines of its log ({where}):\n  {tail}" if lines else "it wrote no log"

    def kept_path(self) -> str:
        """The path of the copy, which is kept from now on, or the reason why there is none."""
        self._named = True
        try:
            if not self.file.closed:
                self._keep()
        except OSError as error:
            return f"not kept: {error}"
        return str(self._kept)

    def close(self) -> None:
        """Complete the copy, if an error has named it."""
        if self.file.closed:
            return
        if self._named:
            with suppress(OSError):  # the error that named the copy contains the reason
                self._keep()
        self.file.close()

    def _read(self) -> bytes:
        descriptor = self.file.fileno()
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, MOST_BYTES, max(0, size - MOST_BYTES))

    def _keep(self) -> None:
        folder = self._kept.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._kept.unlink(missing_ok=True)
        with os.fdopen(os.open(self._kept, os.O_WRONLY | NEW_FILE, 0o600), "wb") as copy:
            copy.write(self._read())
        logs = sorted(folder.glob(f"{self._kept.name.partition('-')[0]}-*.log"), key=_age)
        for old in logs[KEPT:]:
            old.unlink(missing_ok=True)


def default_folder() -> Path:
    """``corerl/engine-logs`` in the user's state folder."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state") / "corerl" / "engine-logs"


def _age(log: Path) -> float:
    try:
        return -log.stat().st_mtime
    except OSError:  # another process has removed it
        return 0.0
