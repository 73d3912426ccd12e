"""Main memory within the limits of control groups, of files as the kernel writes them."""

from pathlib import Path

import pytest

from corerl_check.contract import MainMemory
from corerl_check.main_memory import main_memory

GIB = 2**30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine of 24 GiB, 20 of them free."""
    (tmp_path / "proc/self").mkdir(parents=True)
    lines = [f"MemTotal:       {24 * 2**20} kB", "MemFree:         1000 kB", f"MemAvailable:   {20 * 2**20} kB"]
    (tmp_path / "proc/meminfo").write_text("\n".join(lines) + "\n")
    return tmp_path


def group(root: Path, groups: str, limits: dict[str, str]) -> None:
    """The groups of the process, and files of limits below sys/fs/cgroup."""
    (root / "proc/self/cgroup").write_text(groups)
    for file, text in limits.items():
        path = root / "sys/fs/cgroup" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_without_a_limit_the_machine_has_its_memory(root: Path) -> None:
    assert main_memory(root) == MainMemory(24 * GIB, 20 * GIB, "this machine")
    group(root, "0::/user.slice\n", {"user.slice/memory.max": "max\n"})
    assert main_memory(root) == MainMemory(24 * GIB, 20 * GIB, "this machine")


@pytest.mark.parametrize(
    ("groups", "file"),
    [
        ("0::/a/b\n", "a/b/memory.max"),
        ("0::/a/b\n", "a/memory.max"),  # of the group around it
        ("0::/\n", "memory.max"),  # a container, which sees its group as the root
        ("0::/../../other\n", "memory.max"),  # a group outside of what the container sees
        ("12:memory:/docker/x\n0::/\n", "memory/docker/x/memory.limit_in_bytes"),  # version 1
        ("12:memory:/docker/x\n", "memory/memory.limit_in_bytes"),
        ("1:name=systemd:/\n0::/a\n", "unified/a/memory.max"),  # both versions
    ],
)
def test_the_limit_of_a_control_group_counts(root: Path, groups: str, file: str) -> None:
    group(root, groups, {file: f"{4 * GIB}\n"})
    found = main_memory(root)
    assert found is not None and (found.limit, found.free) == (4 * GIB, 4 * GIB)
    assert found.whose == f"the control group {(root / 'sys/fs/cgroup' / file).parent}"


def test_the_least_of_several_limits_counts_and_none_above_the_memory_of_the_machine(root: Path) -> None:
    group(root, "0::/a/b\n", {"a/b/memory.max": f"{9 * GIB}", "a/memory.max": f"{3 * GIB}"})
    found = main_memory(root)
    assert found is not None and found.limit == 3 * GIB
    group(root, "0::/a/b\n", {"a/b/memory.max": f"{2**63 - 4096}", "a/memory.max": f"{2**62}"})
    assert main_memory(root) == MainMemory(24 * GIB, 20 * GIB, "this machine")


def test_a_system_without_these_files_has_no_known_memory(tmp_path: Path) -> None:
    assert main_memory(tmp_path) is None
