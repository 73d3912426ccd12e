"""Copies of checkpoints in a folder of fsspec, and runs that resume from them."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from corerl.checkpoint import manifest
from corerl.checkpoint.resume import find_checkpoint
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.errors import ConfigError, SaveError
from corerl_tools.remote import copies, places
from corerl_tools.remote.fetching import fetch

MEMORY = type(fsspec.filesystem("memory"))


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A run with the checkpoints of steps 1 and 2."""
    config = TrainConfig(ModelConfig("m"))
    config.trainer.remote_dir = f"memory://{tmp_path.name}"
    config.trainer.output_dir = str(tmp_path / "runs")
    folder = tmp_path / "runs" / "default" / "20260101-1"
    for number in (1, 2):
        save(folder, number)
    (folder / "config.yaml").write_text("{}")
    (folder / "metrics.jsonl").write_text('{"step": 2}\n')
    return SimpleNamespace(config=config, folder=folder)


def save(folder: Path, number: int) -> None:
    path = folder / "checkpoints" / f"global_step_{number}"
    (path / "actor").mkdir(parents=True)
    (path / "actor" / "weights").write_text(f"of step {number}")
    state = {"step": number, "sampler": {}, "kl_coef": None, "trackers": {}, "config": {}, "versions": {}}
    (path / "state.json").write_text(json.dumps(state))
    manifest.write(path)


def step(run: Any, number: int) -> Path:
    return Path(run.folder / "checkpoints" / f"global_step_{number}")


def copy(run: Any, *numbers: int) -> None:
    for number in numbers:
        copies.of_run(run).begin(step(run, number))
    copies.ended(run, None)


def names(run: Any) -> list[str]:
    system, path = fsspec.url_to_fs(run.config.trainer.remote_dir)
    return [each.removeprefix(f"{path}/default/20260101-1/") for each in sorted(system.find(path))]


def files(number: int) -> list[str]:
    return [f"global_step_{number}/{name}" for name in ("actor/weights", "manifest.json", "state.json")]


def elsewhere(run: Any, tmp_path: Path, *, mode: str = "auto") -> TrainConfig:
    """The config on a machine without files."""
    config: TrainConfig = run.config
    config.trainer.output_dir, config.trainer.resume_mode = str(tmp_path / "fresh"), mode
    return config


def test_a_checkpoint_is_copied_and_that_of_a_deleted_one_is_deleted(run: Any) -> None:
    copy(run, 1)
    assert names(run) == ["config.yaml", *files(1), "metrics.jsonl"]
    step(run, 1).rename(run.folder / "gone")
    system, path = fsspec.url_to_fs(run.config.trainer.remote_dir)
    for name in ("global_step_1.bak/mine", "global_step_9/of_another_machine"):
        system.pipe_file(f"{path}/default/20260101-1/{name}", b"")
    copy(run, 2, 2)
    kept = ["global_step_1.bak/mine", *files(2), "global_step_9/of_another_machine"]
    assert names(run) == ["config.yaml", *kept, "metrics.jsonl"]
    assert system.cat(f"{path}/default/20260101-1/global_step_2/actor/weights") == b"of step 2"
    status = copies.read(run.folder)
    assert (status.checkpoint, status.state, status.known) == ("global_step_2", "copied", ("global_step_2",))
    assert not (run.folder / copies.LINKS).exists()


def test_the_manifest_comes_last_and_nothing_half_written_is_left(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy(run, 1)
    put, original = [], MEMORY.put_file

    def fails(self: Any, source: str, target: str) -> None:
        put.append(target.rpartition("/")[2])
        if put[-1] == "manifest.json":
            raise OSError("the bucket is full")
        original(self, source, target)

    monkeypatch.setattr(MEMORY, "put_file", fails)
    copy(run, 2)
    assert put == ["weights", "state.json", "manifest.json"]
    assert names(run) == ["config.yaml", *files(1), "metrics.jsonl"]
    assert "global_step_2 could not be copied to memory://" in capsys.readouterr().err
    assert (copies.read(run.folder).state, copies.read(run.folder).error) == ("failed", "OSError: the bucket is full")
    run.config.trainer.on_save_error = "stop"
    with pytest.raises(SaveError, match="OSError: the bucket is full"):
        copy(run, 2)
    copies.of_run(run).begin(step(run, 2))
    with pytest.raises(SaveError, match="OSError: the bucket is full"):
        copies.of_run(run).begin(step(run, 1))
    copies.ended(run, ValueError("of the run"))


def test_a_file_system_that_cannot_be_opened_ends_no_training(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(url: str) -> None:
        raise ConnectionError("no name node answers")

    with monkeypatch.context() as patch:
        patch.setattr(fsspec, "url_to_fs", fails)
        copy(run, 1)
    assert "ConnectionError: no name node answers; the checkpoint itself is complete" in capsys.readouterr().err
    copy(run, 2)
    assert copies.read(run.folder).state == "copied"


def test_training_goes_on_during_a_copy_and_the_next_one_waits_until_its_deadline(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hangs, original = threading.Event(), MEMORY.put_file

    def waits(self: Any, source: str, target: str) -> None:
        if "global_step_1/" in target:
            hangs.wait(20)
        original(self, source, target)

    monkeypatch.setattr(MEMORY, "put_file", waits)
    run.config.trainer.remote_timeout = 0.3
    copies.of_run(run).begin(step(run, 1))
    assert copies.read(run.folder).state == "copying"
    copies.of_run(run).begin(step(run, 2))
    assert "took longer than trainer.remote_timeout = 0.3 s" in capsys.readouterr().err
    copies.ended(run, None)
    hangs.set()
    for thread in [each for each in threading.enumerate() if each.name == "corerl-remote"]:
        thread.join(20)
    assert [each for each in names(run) if "manifest" in each] == ["global_step_2/manifest.json"]
    assert copies.read(run.folder).state == "copied"


def test_a_checkpoint_that_is_deleted_during_its_copy_is_copied_whole(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes, original = threading.Event(), MEMORY.put_file

    def waits(self: Any, source: str, target: str) -> None:
        goes.wait(20)
        original(self, source, target)

    monkeypatch.setattr(MEMORY, "put_file", waits)
    copies.of_run(run).begin(step(run, 1))
    step(run, 1).rename(run.folder / "gone")
    for file in (run.folder / "gone" / "actor").iterdir():
        file.unlink()
    goes.set()
    copies.ended(run, None)
    assert names(run) == ["config.yaml", *files(1), "metrics.jsonl"]


def test_another_remote_folder_loses_no_copies_of_the_names_that_the_former_one_had(run: Any, tmp_path: Path) -> None:
    copy(run, 1)
    run.config.trainer.remote_dir = f"memory://other-{tmp_path.name}"
    system, path = fsspec.url_to_fs(run.config.trainer.remote_dir)
    theirs = f"{path}/default/20260101-1/global_step_1/manifest.json"
    system.pipe_file(theirs, b"{}")
    step(run, 1).rename(run.folder / "gone")
    copy(run, 2)
    assert system.exists(theirs)
    step(run, 2).rename(run.folder / "gone too")
    save(run.folder, 3)
    copy(run, 3)
    assert system.exists(theirs) and not system.exists(f"{path}/default/20260101-1/global_step_2/manifest.json")


def test_the_newest_run_is_the_last_by_its_start_in_utc(run: Any, tmp_path: Path) -> None:
    """A run named in UTC, then one whose machine is eight hours to the west, and a copy of the first one."""
    starts = {
        "20261101-180000": ("20261101-180000", "2026-11-01T18:00+00:00"),
        "20261101-110000": ("20261101-110000", "2026-11-01T19:00+00:00"),
        "20261101-180000-backup": ("20261101-180000", "2026-11-01T18:00+00:00"),
    }
    for number, (folder, (name, start)) in enumerate(starts.items(), start=1):
        run.folder = tmp_path / "runs" / "default" / folder
        save(run.folder, number)
        (run.folder / "run.json").write_text(json.dumps({"name": name, "started": start}))
        copy(run, number)
    config = elsewhere(run, tmp_path)
    fetched = fetch(config, 9)
    assert fetched is not None and fetched.parents[1].name == "20261101-110000"
    assert (fetched.parents[1] / "run.json").is_file()
    config.trainer.output_dir = str(tmp_path / "runs")  # all of them are here
    assert fetch(config, 9) is None


def test_a_fresh_machine_resumes_from_the_newest_complete_copy(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch(elsewhere(run, tmp_path), 9) is None
    copy(run, 1, 2)
    system, path = fsspec.url_to_fs(run.config.trainer.remote_dir)
    remote = f"{path}/default/20260101-1"
    system.pipe_file(f"{path}/default/20250101-1/global_step_8/manifest.json", b'{"files": {}}')  # an older run
    save(run.folder, 3)
    for name in ("state.json", "manifest.json"):  # cut off before the mark was last: a file is missing
        system.put_file(str(step(run, 3) / name), f"{remote}/global_step_3/{name}")
    system.pipe_file(f"{remote}/global_step_4/state.json", b"{}")  # no mark
    config = elsewhere(run, tmp_path)
    assert fetch(config, 2) is None  # finished
    fetched = fetch(config, 9)
    assert fetched is not None and fetched.name == "global_step_2" and not manifest.damage(fetched)
    assert fetched.is_relative_to(tmp_path / "fresh" / "default" / "20260101-1")
    assert find_checkpoint(config, 9, fetched).step == 2  # type: ignore[union-attr]
    said = capsys.readouterr().err
    assert "global_step_4 in memory://" in said and "has no manifest.json" in said
    assert "(actor/weights is cut off or missing)" in said
    run_folder = fetched.parents[1]
    assert (run_folder / "metrics.jsonl").read_text() == '{"step": 2}\n'
    assert sorted(each.name for each in run_folder.glob("checkpoints/*")) == ["global_step_2", "latest"]
    assert fetch(config, 9) is None  # it is here
    assert find_checkpoint(config, 9).step == 2  # type: ignore[union-attr]
    copies.of_run(SimpleNamespace(config=config, folder=run_folder)).begin(fetched)
    copies.ended(SimpleNamespace(config=config, folder=run_folder), None)
    assert "global_step_1/manifest.json" in names(run)  # this machine has not deleted it


def test_a_damaged_copy_is_not_taken_for_whole(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy(run, 1, 2)
    system, path = fsspec.url_to_fs(run.config.trainer.remote_dir)
    system.pipe_file(f"{path}/default/20260101-1/global_step_2/actor/weights", b"of step X")
    url = f"{run.config.trainer.remote_dir}/default/20260101-1"
    with pytest.raises(ConfigError, match=r"has no undamaged checkpoint \(actor/weights differs"):
        fetch(elsewhere(run, tmp_path, mode=f"{url}/global_step_2"), 9)
    assert not list((tmp_path / "fresh").rglob("weights"))
    fetched = fetch(elsewhere(run, tmp_path), 9)
    assert fetched is not None and (fetched / "actor" / "weights").read_text() == "of step 1"
    assert "global_step_2 in memory://" in capsys.readouterr().err
    run.config.trainer.remote_dir = None
    for mode in (url, f"{url}/", f"{url}/global_step_1"):
        assert fetch(elsewhere(run, tmp_path, mode=mode), 9) == fetched
    save(fetched.parents[1], 5)
    assert fetch(elsewhere(run, tmp_path, mode=url), 9) == fetched.parents[1]  # a later one is here
    for mode, words in ((f"{url}/global_step_7", "is neither a complete"), ("s4://a", "is no folder of fsspec")):
        with pytest.raises(ConfigError, match=words):
            fetch(elsewhere(run, tmp_path, mode=mode), 9)


def test_a_folder_that_cannot_be_read_is_an_error_and_no_new_run(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Any, *args: Any, **kwargs: Any) -> None:
        raise PermissionError("access denied")

    with monkeypatch.context() as patch:
        patch.setattr(MEMORY, "ls", fails)
        with pytest.raises(ConfigError, match=r"PermissionError: access denied; trainer\.resume_mode=disable"):
            fetch(elsewhere(run, tmp_path), 9)
    over = threading.Event()
    monkeypatch.setattr(MEMORY, "ls", lambda *_, **__: over.wait(20))
    run.config.trainer.remote_timeout = 0.1
    with pytest.raises(ConfigError, match=r"took longer than trainer\.remote_timeout = 0\.1 s"):
        fetch(elsewhere(run, tmp_path), 9)
    over.set()


def test_old_copies_of_another_machine_are_deleted_with_a_limit_alone(run: Any, tmp_path: Path) -> None:
    copy(run, 1, 2)
    run.config.trainer.max_ckpt_to_keep = 1
    fetched = fetch(elsewhere(run, tmp_path), 9)
    assert fetched is not None
    here = SimpleNamespace(config=run.config, folder=fetched.parents[1])
    copies.of_run(here).begin(fetched)
    copies.ended(here, None)
    assert names(run) == ["config.yaml", *files(2), "metrics.jsonl"]


def test_a_file_system_that_fsspec_lacks_is_an_error_before_the_run(run: Any) -> None:
    places.check(run.config.trainer.remote_dir)
    run.config.trainer.remote_dir = "s4://bucket"
    with pytest.raises(ConfigError, match=r"trainer\.remote_dir: s4://bucket is no folder of fsspec"):
        places.check(run.config.trainer.remote_dir)
