"""What is left of an engine's processes."""

import time
from pathlib import Path


def group_members(leader: int) -> set[int]:
    """The processes of a group that are alive."""
    members = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rsplit(")", 1)[1].split()[:3]
        except (OSError, ValueError):
            continue
        if int(group) == leader and state != "Z":
            members.add(int(stat.parent.name))
    return members


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
