import contextlib
import errno
import json
import shutil
import threading

import pytest

from corerl.checkpoint import manifest, random_state
from corerl.checkpoint.resume import find_checkpoint, taken
from corerl.checkpoint.store import Best, CheckpointStore
from corerl.contracts.config import ModelConfig, TrackingConfig, TrainConfig, TrainerConfig
from corerl.errors import ConfigError, DeadlineError, SaveError

STATE = {"sampler": {}, "kl_coef": None, "trackers": {}, "config": {}, "versions": {}}


class Actor:
    """Writes one file, in the call or in a thread that waits."""

    def __init__(self, error="", release=None):
        self.error, self.release = error, release

    def save(self, folder, written):
        def write():
            if self.release is not None:
                self.release.wait()
            with contextlib.suppress(OSError):  # the folder is gone once nobody waits
                (folder / "weights").write_text("w")
                (written / "0.tmp").write_text(self.error)
                (written / "0.tmp").rename(written / "0")

        threading.Thread(target=write, daemon=True).start()
        return 1


def save(store, step, actor=None, **state):
    store.copy(step, {"actor": actor or Actor()})
    store.write({**STATE, **state}, random_state.present())
    return store.settle(wait=True)


def config(folder, mode="auto", **trainer):
    values = TrainerConfig(output_dir=str(folder), resume_mode=mode, **trainer)
    return TrainConfig(ModelConfig("m"), trainer=values, tracking=TrackingConfig(experiment_name="e"))


def store_of(folder, time="20260102-030405", **options):
    run = folder / "e" / time
    run.mkdir(parents=True)
    (run / "config.yaml").touch()
    return CheckpointStore(run / "checkpoints", **options)


def test_auto_goes_on_with_the_newest_run_unless_it_is_done(tmp_path):
    assert find_checkpoint(config(tmp_path), 20) is None
    store = store_of(tmp_path)
    for step in (1, 10, 12):
        save(store, step, sampler={"position": step}, kl_coef=0.5)
    found = find_checkpoint(config(tmp_path), 20)
    assert (found.step, found.sampler, found.kl_coef) == (12, {"position": 12}, 0.5)
    assert found.run_folder == store.folder.parent
    assert find_checkpoint(config(tmp_path), 12) is None
    assert find_checkpoint(config(tmp_path, "disable"), 20) is None
    assert find_checkpoint(config(tmp_path, str(store.folder / "global_step_10")), 10).step == 10
    assert find_checkpoint(config(tmp_path, str(store.folder.parent)), 10).step == 12
    store_of(tmp_path, "20260102-030405-2")  # begun later, and nothing saved yet
    assert find_checkpoint(config(tmp_path), 20) is None


def test_the_newest_run_is_the_last_of_those_that_began_in_the_same_second(tmp_path):
    runs = {1: store_of(tmp_path)} | {number: store_of(tmp_path, f"20260102-030405-{number}") for number in (9, 10, 2)}
    for step, number in enumerate((10, 9, 2, 1), start=1):
        save(runs[number], step)
        assert find_checkpoint(config(tmp_path), 20).step == step
        shutil.rmtree(runs[number].folder.parent)


def test_a_folder_without_a_checkpoint_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"trainer\.resume_mode: .* is neither auto, disable, a checkpoint"):
        find_checkpoint(config(tmp_path, str(tmp_path)), 5)


@pytest.mark.parametrize(
    "spoil, why",
    [
        (lambda path: (path / "actor" / "weights").write_text("v"), "actor/weights differs from the written"),
        (lambda path: (path / "actor" / "weights").write_text("ww"), "actor/weights has 2 bytes, not 1"),
        (lambda path: (path / "actor" / "weights").unlink(), "actor/weights is missing"),
        (lambda path: (path / "manifest.json").write_text("{"), "it has no readable manifest.json"),
        (lambda path: (path / "manifest.json").write_text("null"), "it has no readable manifest.json"),
    ],
)
def test_of_a_damaged_checkpoint_the_one_before_is_taken_and_the_damage_told(tmp_path, capsys, spoil, why):
    store = store_of(tmp_path)
    save(store, 1)
    spoil(save(store, 2))
    assert find_checkpoint(config(tmp_path), 5).step == 1
    assert f"global_step_2 is damaged ({why}" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="is damaged"):
        find_checkpoint(config(tmp_path, str(store.folder / "global_step_2")), 5)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b"\0\0\0\0", "it has '"),
        (b"global_step_", "it has 'global_step_'"),
        (b"\xff\xfe", "it cannot be read: 'utf-8'"),
        (None, "it cannot be read: [Errno 21]"),
    ],
)
def test_without_a_name_in_latest_the_newest_whole_checkpoint_is_taken_and_told(tmp_path, capsys, content, why):
    store = store_of(tmp_path)
    for step in (1, 2, 3):
        save(store, step)
    (store.folder / "global_step_3" / "actor" / "weights").write_text("damaged")
    (store.folder / "global_step_2.bak").mkdir()
    pointer = store.folder / "latest"
    if content is None:
        pointer.unlink()
        pointer.mkdir()
    else:
        pointer.write_bytes(content)
    for mode in ("auto", str(store.folder.parent)):
        assert find_checkpoint(config(tmp_path, mode), 5).step == 2
        assert f"{pointer} names no checkpoint ({why}" in capsys.readouterr().err


def test_checksums_are_of_blocks_read_by_several_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "BLOCK", 4)
    (tmp_path / "weights").write_bytes(b"abcdefghij")
    manifest.write(tmp_path)
    written = json.loads((tmp_path / "manifest.json").read_text())
    # CRC-32 of abcd, efgh, ij
    assert written["files"]["weights"] == {"size": 10, "crc32": [3984772369, 137591733, 1484868183]}
    assert manifest.damage(tmp_path) == ""
    (tmp_path / "weights").write_bytes(b"abcdefghiJ")
    assert manifest.damage(tmp_path) != ""


def test_an_empty_file_is_part_of_a_checkpoint(tmp_path):
    (tmp_path / "nothing").touch()
    manifest.write(tmp_path)
    assert manifest.damage(tmp_path) == ""
    (tmp_path / "nothing").unlink()
    assert manifest.damage(tmp_path) == "nothing is missing"


def test_a_run_that_another_process_trains_is_not_resumed(tmp_path, capsys):
    store = store_of(tmp_path)
    save(store, 1)
    with taken(store.folder.parent):
        assert find_checkpoint(config(tmp_path), 5) is None
        assert "still running in another process" in capsys.readouterr().err
        with pytest.raises(ConfigError, match="another process is training in"):
            find_checkpoint(config(tmp_path, str(store.folder.parent)), 5)
    assert find_checkpoint(config(tmp_path), 5).step == 1


@pytest.mark.parametrize("actor", [Actor("OSError: disk full"), None])
def test_a_failure_leaves_the_checkpoints_before_it(tmp_path, actor):
    store = store_of(tmp_path)
    save(store, 1)
    if actor is None:
        actor = Actor()
        actor.save = lambda folder, written: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(SaveError, match=r"disk full|No space left"):
        save(store, 2, actor)
    assert find_checkpoint(config(tmp_path), 5).step == 1
    assert sorted(path.name for path in store.folder.iterdir()) == ["global_step_1", "latest"]
    assert save(store, 3).name == "global_step_3"


def test_nothing_is_complete_before_it_is_written_and_a_wait_for_it_ends(tmp_path):
    release = threading.Event()
    store = store_of(tmp_path, timeout=0.05)
    store.copy(1, {"actor": Actor(release=release)})
    store.write(STATE, {})
    assert store.settle(wait=False) is None
    assert not (store.folder / "latest").exists()
    with pytest.raises(DeadlineError, match=r"global_step_1 took longer than trainer\.save_timeout = 0\.05 s"):
        store.settle(wait=True)
    assert store.settle(wait=True) is None  # it is given up: nobody waits for it a second time
    release.set()
    store.timeout = 600
    assert save(store, 2).name == "global_step_2"
    assert sorted(path.name for path in store.folder.iterdir()) == ["global_step_2", "latest"]


def test_nobody_waits_for_who_has_ended(tmp_path):
    store = store_of(tmp_path, timeout=600)
    store.copy(1, {"actor": Actor(release=threading.Event())})
    store.write(STATE, {})
    store.give_up()
    with pytest.raises(
        SaveError, match=r"global_step_1 was abandoned: not every rank of 'actor' has written its share"
    ):
        store.settle(wait=True)
    assert not list(store.folder.iterdir())


@pytest.mark.parametrize("ended", [False, True])
def test_a_copy_of_a_step_that_failed_is_removed_once_it_is_written_or_who_writes_it_has_ended(tmp_path, ended):
    store, release = store_of(tmp_path), threading.Event()
    save(store, 1)
    store.copy(2, {"actor": Actor(release=release)})
    dropped = threading.Thread(target=store.drop, kwargs={"wait": not ended})
    dropped.start()
    dropped.join(60 if ended else 0.2)
    assert dropped.is_alive() is not ended
    release.set()
    dropped.join(60)
    assert sorted(each.name for each in store.folder.iterdir()) == ["global_step_1", "latest"]
    store.drop(wait=True)
    assert store.settle(wait=True) is None


def test_the_newest_and_the_best_are_kept(tmp_path):
    store = store_of(tmp_path, max_to_keep=2, best=Best("reward"))
    for step, score in ((8, 0.1), (9, 0.7), (10, 0.3), (11, None)):
        save(store, step, score=score)
    names = ["global_step_10", "global_step_11", "global_step_9"]
    assert sorted(path.name for path in store.folder.glob("global*")) == names
    assert ((store.folder / "best").read_text(), (store.folder / "latest").read_text()) == (names[2], names[1])


def test_checkpoints_beyond_the_one_that_was_resumed_are_left_alone(tmp_path):
    store = store_of(tmp_path, max_to_keep=1)
    save(store, 20)
    save(store, 11)
    save(store, 12)
    assert sorted(path.name for path in store.folder.glob("global*")) == ["global_step_12", "global_step_20"]
    assert find_checkpoint(config(tmp_path), 30).step == 12
