"""Copies of complete checkpoints in a folder of fsspec (``trainer.remote_dir``)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from corerl.checkpoint.store import is_checkpoint
from corerl.errors import ConfigError, SaveError
from corerl.terminal import say

if TYPE_CHECKING:
    from corerl.trainer.run import Run

KEY = "trainer.remote_dir"

MARK = "manifest.json"
"""copied last: a folder without it is no checkpoint"""


def check(url: str) -> None:
    """
    Raises:
        ConfigError: fsspec has no such file system, or a package of it is missing.
    """
    _open(url)


def copy(run: "Run", step: int, path: Path) -> None:
    """Copy a checkpoint to ``<remote_dir>/<experiment>/<run>/global_step_N``, and delete the copies of deleted ones.

    Other files beside the copies stay.

    Raises:
        SaveError: it could not be copied, with ``trainer.on_save_error: stop``; nothing of it is left there.
    """
    trainer = run.config.trainer
    assert trainer.remote_dir is not None
    system, base = _open(trainer.remote_dir)
    folder = f"{base.rstrip('/')}/{run.config.tracking.experiment_name}/{run.folder.name}"
    target = f"{folder}/{path.name}"
    try:
        _remove(system, target)
        try:
            files = [file for file in sorted(path.rglob("*")) if file.is_file()]
            for file in sorted(files, key=lambda each: each == path / MARK):
                place = f"{target}/{file.relative_to(path).as_posix()}"
                system.makedirs(place.rpartition("/")[0], exist_ok=True)
                system.put_file(str(file), place)
        except BaseException:
            _remove(system, target)
            raise
        for each in system.ls(folder, detail=False):
            name = each.rstrip("/").rpartition("/")[2]
            if is_checkpoint(Path(name)) and not (path.parent / name).is_dir():
                _remove(system, f"{folder}/{name}")
    except Exception as error:  # each file system has errors of its own
        message = f"{path.name} could not be copied to {trainer.remote_dir}: {type(error).__name__}: {error}"
        if trainer.on_save_error == "stop":
            raise SaveError(message) from error
        say(f"{message}; the checkpoint itself is complete, and training continues (trainer.on_save_error=continue)")


def _open(url: str) -> tuple[Any, str]:
    try:
        import fsspec

        system, path = fsspec.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(KEY, f"{url} is no folder of fsspec: {error}") from error
    return system, str(path)


def _remove(system: Any, folder: str) -> None:
    if system.exists(folder):
        system.rm(folder, recursive=True)
