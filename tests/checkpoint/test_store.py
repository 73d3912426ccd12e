import pytest

from corerl.checkpoint.store import CheckpointStore, find_checkpoint
from corerl.errors import ConfigError


class Actor:
    def __init__(self, fails=False):
        self.fails = fails

    def save(self, folder):
        (folder / "weights").write_text("w")

    def export(self, folder):
        if self.fails:
            raise OSError("disk full")
        (folder / "config.json").write_text("{}")


def test_the_latest_of_a_run_and_a_named_checkpoint_are_found(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    for step in (1, 10, 2):
        store.save(step, Actor(), {"sampler": {"epoch": 0, "position": step}, "kl_coef": 0.5})
    latest = find_checkpoint(str(tmp_path))
    assert (latest.step, latest.sampler["position"], latest.run_folder) == (2, 2, tmp_path)
    assert latest.kl_coef == 0.5
    assert find_checkpoint(str(tmp_path / "checkpoints" / "global_step_10")).step == 10
    assert find_checkpoint("never") is None


def test_a_failure_leaves_the_last_complete_one(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(1, Actor(), {"sampler": {}})
    with pytest.raises(OSError, match="disk full"):
        store.save(2, Actor(fails=True), {})
    assert find_checkpoint(str(tmp_path)).step == 1
    assert sorted(path.name for path in store.folder.iterdir()) == ["global_step_1", "latest"]


def test_only_so_many_are_kept(tmp_path):
    store = CheckpointStore(tmp_path, max_to_keep=2)
    for step in (8, 9, 10):
        store.save(step, Actor(), {})
    assert sorted(path.name for path in tmp_path.glob("global*")) == ["global_step_10", "global_step_9"]


def test_a_folder_without_a_checkpoint_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"checkpoint\.resume"):
        find_checkpoint(str(tmp_path))
