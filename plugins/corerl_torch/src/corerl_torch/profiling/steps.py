"""The profile of a step, from the controller to the workers."""

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from corerl.contracts.runs import Run
from corerl.errors import LostError, RunError
from corerl.terminal.notices import say
from corerl_torch.profiling import recorder
from corerl_torch.profiling.options import ROLES, ProfileOptions, read_options


@runtime_checkable
class ProfiledBackend(Protocol):
    """A rollout backend whose engine runs in other processes, which it can profile."""

    def start_profile(self, asked: Mapping[str, Any]) -> None:
        """Begin; ``asked`` is that of :class:`corerl_torch.profiling.recorder.Recording`, with ``rank``."""
        ...

    def stop_profile(self) -> None:
        """End, and write the files."""
        ...


def around_step(run: Run, step: int, workers: Mapping[str, Any]) -> Any:
    """The context of a profiled step."""
    return _profiled(run.folder.absolute() / "profiles" / f"step_{step}", step, workers, read_options(run.config))


@contextmanager
def _profiled(folder: Path, step: int, workers: Mapping[str, Any], options: ProfileOptions) -> Iterator[None]:
    roles = [role for role in options.roles or ROLES if role in workers]
    asked = {"folder": str(folder), **asdict(options)}

    def stop() -> None:
        for role in roles:
            workers[role].apply(functools.partial(_stop, role, options.ranks))

    for role in roles:
        workers[role].apply(functools.partial(_start, role, options.ranks, asked))
    try:
        yield
    except LostError:
        raise
    except BaseException:
        with suppress(RunError):  # the first error matters more
            stop()
        raise
    stop()
    say(f"profiles of step {step}: {folder}")


def _start(role: str, ranks: list[int] | None, asked: dict[str, Any], worker: Any) -> None:
    """In the process of a worker."""
    rank = int(os.environ.get("RANK", "0"))
    if ranks is not None and rank not in ranks:
        return
    backend = getattr(worker, "backend", None)
    if isinstance(backend, ProfiledBackend):
        backend.start_profile({**asked, "rank": rank, "all_threads": not asked["memory"]})
    else:  # calls of a rollout worker come in several threads
        recorder.start(role, {**asked, "all_threads": role == "rollout" or not asked["memory"]})


def _stop(role: str, ranks: list[int] | None, worker: Any) -> None:
    """In the process of a worker."""
    rank = int(os.environ.get("RANK", "0"))
    if ranks is not None and rank not in ranks:
        return
    backend = getattr(worker, "backend", None)
    if isinstance(backend, ProfiledBackend):
        backend.stop_profile()
    else:
        recorder.stop(role, rank)
