import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from corerl.contracts.reward_managers import RewardRequest
from corerl_rewards.folders import remove_folder
from corerl_rewards.parallel import ParallelRewardManager
from plugins.corerl_rewards.tests import attacks


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder for thousands of files: of the disk only where there is no other place."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


def nest(folder: Path, depth: int, name: str = "d") -> None:
    """Folders in folders, each with a file; by descriptors, as no path is that long."""
    folder.mkdir(exist_ok=True)
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here))
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


@pytest.mark.parametrize("depth", [3_000, 20_000])
def test_nested_folders_are_removed(in_memory: Path, depth: int) -> None:
    nest(in_memory / "deep", depth)
    assert remove_folder(in_memory / "deep")
    assert list(in_memory.iterdir()) == []


def test_many_folders_side_by_side_each_of_them_deep_are_removed(in_memory: Path) -> None:
    for number in range(20):
        nest(in_memory / "top", 0)
        nest(in_memory / "top" / f"{number}.removed", 50)  # the names that moved folders are given
    assert remove_folder(in_memory / "top")


def test_the_time_grows_with_the_depth_and_not_with_its_square(in_memory: Path) -> None:
    taken = []
    for depth in (1_000, 8_000):
        nest(in_memory / "deep", depth)
        start = time.process_time()
        assert remove_folder(in_memory / "deep")
        taken.append(time.process_time() - start)
    assert taken[1] < 24 * taken[0]  # 8 times is linear, 64 times quadratic


def test_no_link_is_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (victim / "inner").mkdir(parents=True)
    (victim / "inner" / "file").write_text("kept")
    folder = tmp_path / "folder"
    (folder / "a").mkdir(parents=True)
    (folder / "to-folder").symlink_to(victim)
    (folder / "a" / "to-inner").symlink_to(victim / "inner")
    (folder / "loop").symlink_to(folder)
    os.link(victim / "inner" / "file", folder / "hard")
    os.mkfifo(folder / "pipe")
    assert remove_folder(folder)
    assert not folder.exists()
    assert (victim / "inner" / "file").read_text() == "kept"


def test_a_link_in_the_place_of_the_folder_is_removed_alone(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o750)
    (victim / "file").write_text("kept")
    (tmp_path / "folder").symlink_to(victim)
    assert remove_folder(tmp_path / "folder")
    assert (victim / "file").read_text() == "kept"
    assert victim.stat().st_mode & 0o777 == 0o750


def test_names_that_are_no_text_are_removed(tmp_path: Path) -> None:
    top = os.fsencode(tmp_path / "folder")
    os.makedirs(top + b"/\xff\xfe/\n\x80")  # noqa: PTH103 - bytes
    Path(os.fsdecode(top + b"/\xff\xfe/\xc3\x28")).write_text("")
    assert remove_folder(tmp_path / "folder")


UNREADABLE = """
import os, sys
from pathlib import Path
from corerl_rewards.folders import remove_folder
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
top = Path(sys.argv[1])
(top / "a" / "b" / "c").mkdir(parents=True)
(top / "a" / "b" / "file").write_text("")
for folder, mode in ((top / "a" / "b" / "c", 0), (top / "a" / "b", 0o400), (top / "a", 0o100), (top, 0)):
    folder.chmod(mode)
assert remove_folder(top)
"""


def test_folders_that_nobody_may_read_are_removed_without_privileges() -> None:
    """In a process of its own, as nobody where this one is root: root may read everything."""
    with tempfile.TemporaryDirectory() as parent:  # pytest's own folders are closed to nobody
        Path(parent).chmod(0o777)
        command = [sys.executable, "-c", UNREADABLE, str(Path(parent) / "folder")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert list(Path(parent).iterdir()) == []


def test_a_missing_folder_is_gone_and_what_cannot_be_removed_is_reported(tmp_path: Path) -> None:
    assert remove_folder(tmp_path / "missing")
    nest(tmp_path / "deep", 5)
    assert not remove_folder(tmp_path / "deep", seconds=0.0)
    assert remove_folder(tmp_path / "deep")


@pytest.mark.skipif(sys.platform != "linux", reason="an orphan is found by /proc")
def test_a_scorer_that_leaves_3000_nested_folders_harms_no_other_sample_and_leaves_nothing(
    in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(in_memory))
    manager = ParallelRewardManager({"s": attacks.score}, num_workers=2, timeout=120.0)
    responses = ["nest", *map(str, range(20))]
    try:
        nursery = manager._dispatcher._pool.pid
        first = manager.score([RewardRequest(response, "truth", "s") for response in responses])
        second = manager.score([RewardRequest("1", "truth", "s")] * 20)
        assert manager._dispatcher._pool.pid == nursery, "the process that workers are forked from ended"
    finally:
        manager.close()
    assert [result.score for result in first] == [None, *map(float, range(20))]
    assert [result.score for result in second] == [1.0] * 20
    assert list(in_memory.iterdir()) == []
    assert not _in_session(nursery)


def _in_session(session: int) -> list[int]:
    """Living processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, _, _, number = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(number) == session and state != "Z":
                    found.append(int(entry.name))
    return found
