"""Copies of checkpoints in a folder of fsspec."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.errors import ConfigError, SaveError
from corerl_tools import remote


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A run with the checkpoints of steps 1 and 2."""
    config = TrainConfig(ModelConfig("m"))
    config.trainer.remote_dir = f"memory://{tmp_path.name}"
    folder = tmp_path / "20260101"
    for step in (1, 2):
        actor = folder / "checkpoints" / f"global_step_{step}" / "actor"
        actor.mkdir(parents=True)
        (actor / "weights").write_text(f"of step {step}")
        (actor.parent / "manifest.json").write_text("{}")
    return SimpleNamespace(config=config, folder=folder)


def step(run: Any, number: int) -> Path:
    return Path(run.folder / "checkpoints" / f"global_step_{number}")


def names(run: Any) -> list[str]:
    system, path = fsspec.url_to_fs(run.config.trainer.remote_dir)
    return [each.removeprefix(f"{path}/default/20260101/") for each in sorted(system.find(path))]


def test_a_checkpoint_is_copied_and_that_of_a_deleted_one_is_deleted(run: Any) -> None:
    remote.copy(run, 1, step(run, 1))
    assert names(run) == ["global_step_1/actor/weights", "global_step_1/manifest.json"]
    step(run, 1).rename(run.folder / "gone")
    system, path = fsspec.url_to_fs(run.config.trainer.remote_dir)
    system.pipe_file(f"{path}/default/20260101/global_step_1.bak/mine", b"")
    remote.copy(run, 2, step(run, 2))
    remote.copy(run, 2, step(run, 2))
    assert names(run) == ["global_step_1.bak/mine", "global_step_2/actor/weights", "global_step_2/manifest.json"]
    assert system.cat(f"{path}/default/20260101/global_step_2/actor/weights") == b"of step 2"


def test_the_manifest_comes_last_and_nothing_half_written_is_left(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remote.copy(run, 1, step(run, 1))
    memory, put = type(fsspec.filesystem("memory")), []

    def fails(self: Any, source: str, target: str) -> None:
        put.append(target.rpartition("/")[2])
        if put[-1] == "manifest.json":
            raise OSError("the bucket is full")
        original(self, source, target)

    original = memory.put_file
    monkeypatch.setattr(memory, "put_file", fails)
    remote.copy(run, 2, step(run, 2))
    assert put == ["weights", "manifest.json"]
    assert names(run) == ["global_step_1/actor/weights", "global_step_1/manifest.json"]
    assert "global_step_2 could not be copied to memory://" in capsys.readouterr().err
    run.config.trainer.on_save_error = "stop"
    with pytest.raises(SaveError, match="OSError: the bucket is full"):
        remote.copy(run, 2, step(run, 2))


def test_a_file_system_that_fsspec_lacks_is_an_error_before_the_run(run: Any) -> None:
    remote.check(run.config.trainer.remote_dir)
    run.config.trainer.remote_dir = "s4://bucket"
    with pytest.raises(ConfigError, match=r"trainer\.remote_dir: s4://bucket is no folder of fsspec"):
        remote.check(run.config.trainer.remote_dir)
