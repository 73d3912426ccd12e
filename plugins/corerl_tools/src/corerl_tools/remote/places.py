"""Folders of fsspec, and what is in them."""

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from threading import Thread
from typing import Any, TypeVar

from corerl.checkpoint.resume import RECORD
from corerl.errors import ConfigError, RunError

KEY, TIMEOUT = "trainer.remote_dir", "trainer.remote_timeout"

MARK = "manifest.json"
"""of a checkpoint, copied last: a folder without it is no checkpoint"""

BESIDE = ("config.yaml", "metrics.jsonl", RECORD)
"""files of a run that are copied with each checkpoint"""

T = TypeVar("T")


def check(url: str) -> None:
    """
    Raises:
        ConfigError: fsspec has no such file system, or a package of it is missing.
    """
    opened(url)


def opened(url: str, key: str = KEY) -> tuple[Any, str]:
    """The file system of a URL, without listings of earlier calls, and the path in it.

    Raises:
        ConfigError: as for :func:`check`; ``key`` has the URL.
    """
    try:
        import fsspec

        system, path = fsspec.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(key, f"{url} is no folder of fsspec: {error}") from error
    system.invalidate_cache()
    return system, str(path).rstrip("/")


def remove(system: Any, folder: str) -> None:
    """Remove a folder if it is there; its mark first, so that a removal that is cut off leaves no checkpoint."""
    if system.exists(f"{folder}/{MARK}"):
        system.rm_file(f"{folder}/{MARK}")
    if system.exists(folder):
        system.rm(folder, recursive=True)


def names(system: Any, folder: str) -> list[str]:
    """Names of files and folders in a folder; none if it is missing."""
    try:
        return [str(each).rstrip("/").rpartition("/")[2] for each in system.ls(folder, detail=False)]
    except FileNotFoundError:
        return []


def within(timeout: float, call: Callable[[], T], what: str) -> T:
    """The value of a call in a thread, which is left behind after the deadline.

    Args:
        timeout: seconds.
        what: a noun for the error.

    Raises:
        RunError: the deadline has passed.
    """
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=work, name="corerl-remote", daemon=True).start()
    try:
        return future.result(timeout)
    except Late:
        if future.done():
            raise
        raise RunError(f"{what} took longer than {TIMEOUT} = {timeout:g} s") from None
