"""What a rank leaves that cannot write, as on a full disk: nobody waits for a word that cannot be written."""

import contextlib
import errno
import resource

import pytest
from torch.distributed.checkpoint.api import CheckpointException, _wrap_exception

from corerl.checkpoint.store import CheckpointStore
from corerl.checkpoint.writing import LONGEST_ERROR, described, write_and_report, writing
from corerl.errors import SaveError

FULL = OSError(errno.ENOSPC, "No space left on device")
OF_TORCH = CheckpointException("write", {0: _wrap_exception(FULL)})


@contextlib.contextmanager
def longest_file(size):
    """The kernel refuses longer ones; only within, because pytest's own output may go to a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_word_of_a_rank_has_its_room_before_the_disk_is_full(tmp_path):
    written = tmp_path / "written"
    written.mkdir()
    with longest_file(LONGEST_ERROR):
        write_and_report(lambda: (tmp_path / "weights").write_bytes(b"w" * (LONGEST_ERROR + 1)), written / "0")
    assert (written / "0").read_text().startswith("[Errno 27] File too large")
    write_and_report(lambda: None, written / "1")
    assert (written / "1").read_bytes() == b"" and not [*written.glob("*.tmp")]


def test_a_rank_that_cannot_say_a_word_ends_the_wait_for_it(tmp_path):
    class Actor:
        def save(self, folder, written):
            with longest_file(0):
                write_and_report(lambda: (folder / "weights").write_bytes(b"w"), written / "0")
            return 1

    store = CheckpointStore(tmp_path / "checkpoints", timeout=600)
    store.copy(1, {"actor": Actor()})
    store.write({}, {})
    with pytest.raises(
        SaveError, match=r"global_step_1/actor could not be written: nor could the error of a rank; .* bytes free"
    ):
        store.settle(wait=True)
    assert not [*store.folder.iterdir()]


@pytest.mark.parametrize("error", [FULL, OF_TORCH], ids=["OSError", "CheckpointException"])
def test_whatever_ends_the_writing_of_a_rank_is_told(tmp_path, error):
    assert not isinstance(OF_TORCH, Exception)  # so that a plain `except Exception` lets it pass

    def write():
        raise error

    write_and_report(write, tmp_path / "0")
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    assert "No space left on device" in (tmp_path / "0").read_text()
    with pytest.raises(SaveError, match="No space left on device"), writing(tmp_path / "actor"):
        write()


def test_an_error_is_its_first_line_with_its_kind_unless_it_is_of_the_disk():
    assert described(RuntimeError("file write failed\nframe #0: c10::ThrowEnforceNotMet")) == (
        "RuntimeError: file write failed"
    )
    hidden = RuntimeError("unexpected pos 704 vs 598")
    hidden.__context__ = FULL
    assert described(hidden) == "[Errno 28] No space left on device"
    assert described(ValueError()) == "ValueError: "
    assert described(OF_TORCH) == "rank 0: [Errno 28] No space left on device"
    assert described(OSError(errno.ENOSPC, "No space left")) == f"[Errno {errno.ENOSPC}] No space left"
