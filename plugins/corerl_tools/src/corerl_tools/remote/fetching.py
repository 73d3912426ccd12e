"""Runs that resume from a copy of a checkpoint: its files are fetched, and compared with its manifest."""

import functools
import json
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corerl.checkpoint import manifest
from corerl.checkpoint.resume import KEY, RECORD, read_record, started
from corerl.checkpoint.store import is_checkpoint, paths, step_of
from corerl.contracts.config import TrainConfig, TrainerConfig
from corerl.errors import ConfigError, CoreRLError
from corerl.files import atomic_path, remove
from corerl.terminal import say
from corerl_tools.remote import copies, places

DISABLE = "trainer.resume_mode=disable starts a new run"


@dataclass(frozen=True)
class Copy:
    """A copy that is complete by the sizes of its files.

    Attributes:
        url: of the remote folder, for messages.
        folder: of the checkpoint in ``system``.
        sizes: file -> bytes.
    """

    system: Any
    url: str
    folder: str
    sizes: dict[str, int]

    @property
    def name(self) -> str:
        return self.folder.rpartition("/")[2]

    @property
    def step(self) -> int:
        return step_of(Path(self.name))

    @property
    def run(self) -> str:
        return self.folder.split("/")[-2]

    @property
    def started(self) -> tuple[float, int, bool]:
        """The start of its run."""
        return _started(self.system, self.folder.rpartition("/")[0])


def fetch(config: TrainConfig, total_steps: int) -> Path | None:
    """Bring the checkpoint that ``trainer.resume_mode`` selects to this machine, unless it is here.

    Args:
        total_steps: of the run; ``auto`` continues no finished one.

    Returns:
        The folder of the checkpoint below ``trainer.output_dir``; None: no copy is to be resumed.

    Raises:
        ConfigError: the folder cannot be read in ``trainer.remote_timeout`` seconds, or has no complete checkpoint.
    """
    trainer, base = config.trainer, _experiment(config)
    if "://" in trainer.resume_mode:
        found = _read(trainer.resume_mode, config, KEY, functools.partial(_of_url, trainer.resume_mode))
        if not found:
            raise ConfigError(KEY, f"{trainer.resume_mode} is neither a complete checkpoint nor a run with one")
        run = base / found[0].run
        of_run = not is_checkpoint(Path(trainer.resume_mode.rstrip("/")))
        return run if of_run and _newest_here(run) > found[0].step else _first_whole(found, config)
    if trainer.resume_mode != "auto" or trainer.remote_dir is None:
        return None
    found = _read(trainer.remote_dir, config, places.KEY, functools.partial(_of_experiment, trainer.remote_dir, config))
    if not found or found[0].step >= total_steps:
        return None
    here = max(
        ((started(path.name, read_record(path)), _newest_here(path)) for path in base.glob("[!.]*")), default=None
    )
    if here is not None and here >= (found[0].started, found[0].step):
        return None
    return _first_whole(found, config)


def _experiment(config: TrainConfig) -> Path:
    return Path(config.trainer.output_dir).expanduser() / config.tracking.experiment_name


def _read(url: str, config: TrainConfig, key: str, call: Any) -> list[Copy]:
    """The complete copies of one run, the newest first."""
    try:
        found: list[Copy] = places.within(config.trainer.remote_timeout, call, f"the listing of {url}")
    except Exception as error:  # each file system has errors of its own
        if isinstance(error, ConfigError):
            raise
        reason = str(error) if isinstance(error, CoreRLError) else f"{type(error).__name__}: {error}"
        raise ConfigError(key, f"{url} cannot be read: {reason}; {DISABLE}") from error
    return found


def _of_experiment(url: str, config: TrainConfig) -> list[Copy]:
    """The copies of the newest run that has a complete one."""
    system, base = places.opened(url)
    folder = f"{base}/{config.tracking.experiment_name}"
    runs = places.names(system, folder)
    for run in sorted(runs, key=lambda run: (_started(system, f"{folder}/{run}"), run), reverse=True):
        if found := list(_of_run(system, url, f"{folder}/{run}")):
            return found
    return []


def _of_url(url: str) -> list[Copy]:
    """The copy at a URL, or the copies of the run at it."""
    system, folder = places.opened(url, KEY)
    if is_checkpoint(Path(folder)):
        return list(_complete(system, url, [folder]))
    return list(_of_run(system, url, folder))


def _of_run(system: Any, url: str, folder: str) -> Iterator[Copy]:
    steps = sorted(filter(is_checkpoint, map(Path, places.names(system, folder))), key=step_of, reverse=True)
    return _complete(system, url, [f"{folder}/{step}" for step in steps])


def _complete(system: Any, url: str, folders: list[str]) -> Iterator[Copy]:
    """Those of the folders whose manifest is there, and all of its files with their sizes."""
    for folder in folders:
        sizes, why = {}, f"it has no {places.MARK}"
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            listed = json.loads(system.cat_file(f"{folder}/{places.MARK}"))["files"]
            present = {name.removeprefix(f"{folder}/"): facts["size"] for name, facts in _found(system, folder).items()}
            sizes = {str(name): int(facts["size"]) for name, facts in listed.items()}
            lacking = (f"{name} is cut off or missing" for name in sizes if present.get(name) != sizes[name])
            why = next(lacking, "" if sizes else f"{places.MARK} names no files")
        if not why and any(".." in Path(name).parts or Path(name).is_absolute() for name in sizes):
            why = f"{places.MARK} names files outside of it"
        if why:
            say(f"the copy {folder} in {url} is not complete ({why})")
        else:
            yield Copy(system, url, folder, sizes)


def _found(system: Any, folder: str) -> dict[str, Any]:
    found: dict[str, Any] = system.find(folder, detail=True)
    return found


def _newest_here(run: Path) -> int:
    """The newest step of a run on this machine; -1 without one."""
    return max((step_of(path) for path in paths(run / "checkpoints") if (path / "state.json").is_file()), default=-1)


def _started(system: Any, run: str) -> tuple[float, int, bool]:
    """See :func:`corerl.checkpoint.resume.started`."""
    record = ""
    with suppress(OSError, UnicodeDecodeError):  # by its name, then
        record = system.cat_file(f"{run}/{RECORD}").decode()
    return started(run.rpartition("/")[2], record)


def _first_whole(found: list[Copy], config: TrainConfig) -> Path:
    """Fetch the newest copy whose content is that of its manifest.

    Raises:
        ConfigError: none is, or the deadline has passed.
    """
    why = ""
    for copy in found:
        run = _experiment(config) / copy.run
        try:
            why = places.within(
                config.trainer.remote_timeout,
                functools.partial(_fetched, copy, run, config),
                f"the copy of {copy.folder} from {copy.url}",
            )
        except Exception as error:  # each file system has errors of its own
            reason = str(error) if isinstance(error, CoreRLError) else f"{type(error).__name__}: {error}"
            raise ConfigError(KEY, f"{copy.folder} in {copy.url} cannot be fetched: {reason}; {DISABLE}") from error
        if not why:
            return run / "checkpoints" / copy.name
        say(f"the copy {copy.folder} in {copy.url} is damaged ({why})")
    raise ConfigError(KEY, f"{found[0].url} has no undamaged checkpoint ({why}); {DISABLE}")


def _fetched(copy: Copy, run: Path, config: TrainConfig) -> str:
    """Fetch a copy into the run's folder; its damage, or ''."""
    target = run / "checkpoints" / copy.name
    mark = copy.system.cat_file(f"{copy.folder}/{places.MARK}")
    if (target / places.MARK).is_file() and (target / places.MARK).read_bytes() == mark and not manifest.damage(target):
        return ""
    say(f"fetching {copy.folder} from {copy.url} ({sum(copy.sizes.values()) / 2**30:.2f} GiB)")
    with tempfile.TemporaryDirectory(dir=_made(target.parent), prefix=f".{copy.name}.", suffix=".tmp") as folder:
        fetched = Path(folder) / copy.name
        for name in copy.sizes:
            _made((fetched / name).parent)
            copy.system.get_file(f"{copy.folder}/{name}", str(fetched / name))
        (fetched / places.MARK).write_bytes(mark)
        if why := manifest.damage(fetched):
            return why
        remove(target)
        fetched.rename(target)
    _fetch_beside(copy, run, config.trainer)
    with atomic_path(target.parent / "latest") as pointer:
        pointer.write_text(copy.name)
    return ""


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _fetch_beside(copy: Copy, run: Path, keep: TrainerConfig) -> None:
    """Files of the run that this machine lacks; the copies that shall be deleted with ``trainer.max_ckpt_to_keep``."""
    folder = copy.folder.rpartition("/")[0]
    for name in places.BESIDE:
        if not (run / name).exists() and copy.system.exists(f"{folder}/{name}"):
            with atomic_path(run / name) as temporary:
                temporary.write_bytes(copy.system.cat_file(f"{folder}/{name}"))
    here = copies.read(run)
    if not here.known and keep.max_ckpt_to_keep is not None and keep.keep_best is None:
        known = tuple(name for name in places.names(copy.system, folder) if is_checkpoint(Path(name)))
        copies.write(run, replace(here, known=known, url=copy.url))
