"""What is left of an engine's processes."""

import time
from pathlib import Path

from corerl.engines.remote.ending import members as group_members


def gone_within(leader: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while group_members(leader) and time.monotonic() < end:
        time.sleep(0.1)
    return not group_members(leader)


def engines_of(pid: int) -> list[int]:
    """The leaders of the engines that a process has started."""
    children = [
        int(child) for listed in Path(f"/proc/{pid}/task").glob("*/children") for child in listed.read_text().split()
    ]
    return [child for child in children if b"corerl_engine" in Path(f"/proc/{child}/cmdline").read_bytes()]
