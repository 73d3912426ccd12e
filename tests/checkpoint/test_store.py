import contextlib
import errno
import json
import math
import shutil
import threading
import time
from datetime import datetime

import pytest

from corerl.checkpoint import manifest, random_state
from corerl.checkpoint.branch import Branch
from corerl.checkpoint.resume import find_checkpoint, taken
from corerl.checkpoint.store import CheckpointStore
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


def store_of(folder, name="20260102-030405", **options):
    run = folder / "e" / name
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


def recorded(folder, name, start, copy_of=None):
    """A run of this name with a record of its start, and a checkpoint whose step is the start's minute."""
    store = store_of(folder, name)
    start = datetime.fromisoformat(start)
    record = {"name": copy_of or name, "started": start.isoformat()}
    (store.folder.parent / "run.json").write_text(json.dumps(record))
    save(store, start.minute)
    return store


@pytest.fixture(params=["UTC", "America/Los_Angeles", "Pacific/Kiritimati"])
def zone(request, monkeypatch):
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("zone")
def test_the_newest_run_is_the_last_by_its_start_in_utc_whatever_its_name(tmp_path):
    recorded(tmp_path, "20261101-180000", "2026-11-01T18:01+00:00")  # named in UTC
    recorded(tmp_path, "20261101-100500", "2026-11-01T10:05-08:00")  # named eight hours to the west
    assert find_checkpoint(config(tmp_path), 99).step == 5
    recorded(tmp_path, "20261102-030700", "2026-11-02T03:04+09:00")  # to the east
    recorded(tmp_path, "20261101-013000-2", "2026-11-01T01:59-07:00")  # the first pass of autumn's repeated hour
    assert find_checkpoint(config(tmp_path), 99).step == 5
    recorded(tmp_path, "20261101-013000", "2026-11-01T11:06-08:00")
    assert find_checkpoint(config(tmp_path), 99).step == 6


def test_a_copy_does_not_continue_in_the_place_of_its_original_and_is_named(tmp_path, capsys):
    name, start = "20260102-030405", "2026-01-02T03:07+00:00"
    for suffix in ("-backup", "-0", " copy"):
        recorded(tmp_path, f"{name}{suffix}", start, copy_of=name)
    original = recorded(tmp_path, name, start)
    save(original, 9)
    found = find_checkpoint(config(tmp_path), 99)
    assert (found.run_folder.name, found.step) == (name, 9)
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith(f"{original.folder.parent}-backup is a copy of ")]
    assert len(lines) == 3
    shutil.rmtree(original.folder.parent)
    assert find_checkpoint(config(tmp_path), 99).step == 7


def test_copies_of_runs_without_a_record_are_recognised_by_their_names(tmp_path, capsys):
    for name, step in (("20260102-030405", 1), ("20260102-030405-backup", 2), ("20251231-000000", 3), ("mine", 4)):
        save(store_of(tmp_path, name), step)
    assert find_checkpoint(config(tmp_path), 99).step == 1
    assert "20260102-030405-backup is a copy of" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["-1", "-0", "-02", " (1)", ".bak"])
def test_a_name_that_no_run_gets_is_that_of_a_copy(tmp_path, suffix):
    save(store_of(tmp_path, "20260102-030405"), 1)
    save(store_of(tmp_path, f"20260102-030405{suffix}"), 2)
    assert find_checkpoint(config(tmp_path), 99).step == 1


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


def test_an_evaluation_between_copy_and_write_takes_none_of_the_deadline(tmp_path):
    store = store_of(tmp_path, timeout=60)
    store.copy(1, {"actor": Actor()})
    store._copied.deadline -= 100  # the evaluation took so long
    store.write(STATE, random_state.present())
    assert store.settle(wait=True).name == "global_step_1"


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
    store = store_of(tmp_path, max_to_keep=2, branch=Branch())
    for step, score in ((8, 0.1), (9, 0.7), (10, 0.3), (11, None)):
        save(store, step, score=score)
    names = ["global_step_10", "global_step_11", "global_step_9"]
    assert sorted(path.name for path in store.folder.glob("global*")) == names
    assert ((store.folder / "best").read_text(), (store.folder / "latest").read_text()) == (names[2], names[1])


def test_after_going_back_the_later_checkpoints_of_the_former_course_are_not_the_best(tmp_path):
    store = store_of(tmp_path, branch=Branch("min"))
    for step, score in ((1, 0.5), (2, 0.2), (3, 0.1), (4, 0.4)):
        save(store, step, score=score)

    def resumed(step):
        found = find_checkpoint(config(tmp_path, str(store.folder / f"global_step_{step}")), 9)
        return CheckpointStore(store.folder, branch=Branch("min", dict(found.scores)))

    other = resumed(1)
    save(other, 5, score=0.3)  # steps 2 to 4 are those of the former course
    assert (store.folder / "best").read_text() == "global_step_5"
    again = resumed(5)
    save(again, 6, score=0.6)
    assert (store.folder / "best").read_text() == "global_step_5"
    save(resumed(1), 3, score=0.7)  # in the place of the former course's best
    save(resumed(4), 7, score=0.9)
    assert (store.folder / "best").read_text() == "global_step_2"


def test_a_score_that_is_not_finite_is_none(tmp_path):
    store = store_of(tmp_path, branch=Branch())
    for step, score in ((1, math.nan), (2, 0.5), (3, math.inf), (4, math.nan)):
        path = save(store, step, score=score)
    assert (store.folder / "best").read_text() == "global_step_2"
    stored = json.loads((path / "state.json").read_text(), parse_constant=pytest.fail)
    assert (stored["score"], stored["scores"]) == (None, {"1": None, "2": 0.5, "3": None, "4": None})


def test_without_a_checkpoint_of_the_metric_no_pointer_is_left(tmp_path):
    store = store_of(tmp_path, branch=Branch())
    save(store, 1, score=0.5)
    assert (store.folder / "best").read_text() == "global_step_1"
    save(CheckpointStore(store.folder, branch=Branch()), 2)
    assert not (store.folder / "best").exists()


def test_the_scores_of_earlier_versions_are_those_up_to_the_checkpoint(tmp_path):
    store = store_of(tmp_path)
    for step in (1, 2, 3, 4):
        path = save(store, step, score=step / 8)
        state = json.loads((path / "state.json").read_text())
        del state["scores"]
        (path / "state.json").write_text(json.dumps(state) if step != 2 else "damaged")
        manifest.write(path)
    assert find_checkpoint(config(tmp_path, str(path.with_name("global_step_3"))), 9).scores == {
        1: 0.125,
        2: None,
        3: 0.375,
    }


def test_checkpoints_of_another_branch_are_deleted_first_and_used_last(tmp_path, capsys):
    store = store_of(tmp_path)
    for step in (1, 2, 3, 4, 5):
        save(store, step)
    found = find_checkpoint(config(tmp_path, str(store.folder / "global_step_2")), 9)
    other = CheckpointStore(store.folder, branch=Branch(scores=dict(found.scores)))
    path = save(other, 6)
    (path / "actor" / "weights").write_text("damaged")
    assert find_checkpoint(config(tmp_path), 9).step == 2  # not one of the course that was left
    assert "global_step_6 is damaged" in capsys.readouterr().err
    other._max_to_keep = 3
    save(other, 7)
    assert sorted(each.name for each in store.folder.glob("global*")) == [f"global_step_{each}" for each in (2, 6, 7)]


def test_a_rank_that_is_late_writes_into_no_later_attempt_at_the_same_step(tmp_path):
    store, release, folders = store_of(tmp_path, timeout=0.05), threading.Event(), []

    class Slow(Actor):
        def save(self, folder, written):
            folders.append((folder, written))
            return 2

    store.copy(1, {"actor": Slow()})
    store.write(STATE, {})
    with pytest.raises(DeadlineError, match=r"\(without the share of rank 0 of 'actor', rank 1 of 'actor'\)"):
        store.settle(wait=True)
    store.timeout = 600
    store.copy(1, {"actor": Actor(release=release)})
    store.write(STATE, random_state.present())
    for folder, written in folders:  # the late ranks
        until = time.monotonic() + 30
        while folder.parent.exists() and time.monotonic() < until:  # it is being removed
            time.sleep(0.01)
        folder.mkdir(parents=True)
        written.mkdir(parents=True)
        (folder / "late").write_text("l")
        for rank in ("0", "1"):
            (written / rank).write_text("disk full")
    assert store.settle(wait=False) is None
    release.set()
    path = store.settle(wait=True)
    assert sorted(each.name for each in (path / "actor").iterdir()) == ["weights"]


def test_the_error_of_a_rank_is_raised_while_others_still_write(tmp_path):
    store = store_of(tmp_path, timeout=60)
    save(store, 1)

    class Two:
        def save(self, folder, written):
            (written / "1").write_text("[Errno 28] No space left on device")
            return 2

    store.copy(2, {"actor": Two()})
    store.write(STATE, {})
    with pytest.raises(SaveError) as raised:
        store.settle(wait=True)
    folder = store.folder
    assert str(raised.value).startswith(f"{folder}/global_step_2/actor could not be written: [Errno 28] No space left")
    assert str(raised.value).endswith(" bytes free; global_step_1 is kept")


def test_an_old_checkpoint_that_cannot_be_deleted_is_no_error_of_the_new_one(tmp_path, monkeypatch):
    store = store_of(tmp_path, max_to_keep=1)
    save(store, 1)
    monkeypatch.setattr(store, "_delete_old", lambda step: (_ for _ in ()).throw(PermissionError(13, "not permitted")))
    with pytest.raises(
        SaveError, match=r"global_step_2 is complete, but not what follows it: .*; global_step_2 is kept"
    ):
        save(store, 2)


def test_checkpoints_beyond_the_one_that_was_resumed_are_left_alone(tmp_path):
    store = store_of(tmp_path, max_to_keep=1)
    save(store, 20)
    save(store, 11)
    save(store, 12)
    assert sorted(path.name for path in store.folder.glob("global*")) == ["global_step_12", "global_step_20"]
    assert find_checkpoint(config(tmp_path), 30).step == 12
