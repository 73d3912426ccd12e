"""The status of a run, and whether its process still exists."""

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from corerl.files import reading
from corerl_check.run_status import FILE, RunStatus, process_mark

KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("state", "host", "process"), str),
    **dict.fromkeys(("total_steps", "pid"), int),
    "started": int | float,
    "ended": int | float | None,
    "error": str | None,
}


def read_status(folder: Path) -> RunStatus | None:
    """The status of a run; None without a file.

    The state is ``killed`` if the file has ``running`` and the process has ended. Processes of other machines cannot be
    seen from here: such a run is ``running``.

    Raises:
        RequestError: the file is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    with reading(path):
        status = RunStatus(**json.loads(path.read_text()))
        for name, kind in KINDS.items():
            if not isinstance(getattr(status, name), kind):
                raise TypeError(f"{name} is {getattr(status, name)!r:.100}")
    here = status.host == socket.gethostname()
    if status.state == "running" and here and not _lives(status):
        return replace(status, state="killed")
    return status


def _lives(status: RunStatus) -> bool:
    """Whether its process is there; a zombie is no process."""
    if not Path("/proc/self/stat").exists():
        return _has_number(status.pid)
    return process_mark(status.pid) == status.process


def _has_number(pid: int) -> bool:
    """Without /proc: whether some process has the number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
