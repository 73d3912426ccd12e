import contextlib
import errno
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from corerl.errors import RequestError
from corerl.files import atomic_path, disk_error, reading, remove, unused


def test_a_file_appears_whole(tmp_path):
    with atomic_path(tmp_path / "deep" / "a.txt") as temporary:
        temporary.write_text("done")
        assert not (tmp_path / "deep" / "a.txt").exists()
    assert (tmp_path / "deep" / "a.txt").read_text() == "done"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, error):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(error), atomic_path(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        raise error
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.txt", "old")]


def test_a_folder_replaces_the_old_one(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "stale").touch()
    with atomic_path(tmp_path / "model", folder=True) as temporary:
        (temporary / "new").touch()
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["new"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600), (0o027, 0o640)])
def test_the_files_of_a_folder_have_the_mode_of_the_umask(tmp_path, umask, mode):
    """Weights are written by safetensors, for the owner alone."""
    before = os.umask(umask)
    try:
        with atomic_path(tmp_path / "model", folder=True) as temporary:
            (temporary / "deep").mkdir()
            for name in ("config.json", "model.safetensors", "deep/shard", "run.sh"):
                (temporary / name).touch()
            (temporary / "model.safetensors").chmod(0o600)
            (temporary / "deep/shard").chmod(0o600)
            (temporary / "run.sh").chmod(0o700)
            (temporary / "link").symlink_to("/etc/passwd")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "model").rglob("*[!k]") if path.is_file()}
    assert modes == {"config.json": mode, "model.safetensors": mode, "shard": mode, "run.sh": mode | 0o700}


def test_a_folder_is_removed_while_others_write_and_delete_in_it(tmp_path):
    """Each of two threads removes it, and a third one writes for a while."""
    folder = tmp_path / "save"
    for number in range(300):
        (folder / str(number % 7) / str(number)).mkdir(parents=True)

    def write():
        for number in range(50):
            with contextlib.suppress(OSError):
                (folder / "3" / f"late{number}").touch()

    with ThreadPoolExecutor(3) as threads:
        for each in [threads.submit(write), *(threads.submit(remove, folder) for _ in range(2))]:
            each.result()
    assert not folder.exists()


def test_the_error_of_the_disk_is_found_behind_others():
    full = OSError(errno.ENOSPC, "No space left on device")
    try:
        try:
            raise full
        except OSError as error:
            raise RuntimeError("unexpected pos") from error
    except RuntimeError as error:
        assert disk_error(error) is full
    other = ValueError("x")
    other.__context__ = FileNotFoundError(errno.ENOENT, "gone")
    assert disk_error(other) is other


def test_what_a_damaged_file_raises_is_told_of_it_and_an_error_of_another_file_is_not(tmp_path):
    said = "checkpoint is damaged, or not of CoreRL: ValueError: half"
    with pytest.raises(RequestError, match=said), reading(tmp_path / "checkpoint"):
        raise ValueError("half")
    with pytest.raises(RequestError, match="FileNotFoundError"), reading(tmp_path / "checkpoint"):
        (tmp_path / "checkpoint" / "state.json").read_text()
    with pytest.raises(FileNotFoundError), reading(tmp_path / "checkpoint"):
        (tmp_path / "elsewhere").read_text()


def test_a_taken_name_gets_a_number(tmp_path):
    for expected in ("a", "a-2", "a-3"):
        assert unused(tmp_path / "a") == tmp_path / expected
        (tmp_path / expected).mkdir()
