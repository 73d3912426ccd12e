"""A rank that cannot write its share says so, whatever its library raises."""

import errno

import pytest
from torch.distributed.checkpoint.api import CheckpointException, _wrap_exception

from corerl.checkpoint.writing import write_and_tell, writing
from corerl.errors import SaveError

FULL = OSError(errno.ENOSPC, "No space left on device")
OF_TORCH = CheckpointException("write", {0: _wrap_exception(FULL)})


@pytest.mark.parametrize("error", [FULL, OF_TORCH], ids=["OSError", "CheckpointException"])
def test_whatever_ends_the_writing_of_a_rank_is_told(tmp_path, error):
    assert not isinstance(OF_TORCH, Exception)  # so that a plain `except Exception` lets it pass

    def write():
        raise error

    write_and_tell(write, tmp_path / "0")
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    assert "No space left on device" in (tmp_path / "0").read_text()
    with pytest.raises(SaveError, match="No space left on device"), writing(tmp_path / "actor"):
        write()
