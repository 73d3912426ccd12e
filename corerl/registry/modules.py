"""Import of an object named ``package.module:attribute`` or ``./file.py:attribute``."""

import contextlib
import functools
import gc
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from corerl.contracts.options import did_you_mean
from corerl.errors import PluginError, RunError, UntrustedError

_CORE = Path(__file__).parents[1]

trusted_files: ContextVar[frozenset[Path] | None] = ContextVar("trusted_files", default=None)
"""the only files that may run of all code that a config names; None: all of that code may run"""


def load_object(reference: str) -> Any:
    """The object at ``package.module:attribute`` or ``./file.py:attribute``.

    Raises:
        ImportError, AttributeError, FileNotFoundError: as the import of the module raises them.
    """
    path, _, attribute = reference.rpartition(":")
    file = Path(f"{path}.py")
    if not path.endswith(".py") and ("/" in path or (file.is_file() and importlib.util.find_spec(path) is None)):
        raise ImportError(f"a file is named with its ending: {'' if '/' in path else './'}{file}:{attribute}")
    with uncollected():
        module = load_file(path) if path.endswith(".py") else importlib.import_module(path)
    try:
        return functools.reduce(getattr, attribute.split("."), module)
    except AttributeError:
        raise AttributeError(f"{path} has no '{attribute}'{did_you_mean(attribute, vars(module))}") from None


@contextlib.contextmanager
def foreign_exits() -> Iterator[None]:
    """Raise RunError for a SystemExit of other code, whose exit code may be 0."""
    try:
        yield
    except SystemExit as error:
        raise RunError(f"code of the run has ended the program: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """The error in one line, with the place in the code of others where it was raised."""
    import pluggy

    text = " ".join(str(error).split())
    if isinstance(error, PluginError):
        return text
    own = ("<frozen", *(str(Path(file or "").parent) for file in (importlib.__file__, pluggy.__file__)), str(_CORE))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    if frames and not isinstance(error, SyntaxError):  # which names its place itself
        text += f" ({frames[-1].filename}, line {frames[-1].lineno})"
    return f"{type(error).__name__}: {text}"


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Turn the garbage collector off: it takes a fifth of the import time of torch and transformers."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def untrusted(files: Iterable[str] = ()) -> Iterator[None]:
    """Run no code that a config names, except these files; new threads do not inherit the limit."""
    token = trusted_files.set(frozenset(Path(file).expanduser().resolve() for file in files))
    try:
        yield
    finally:
        trusted_files.reset(token)


def may_run(file: str) -> bool:
    """Whether a file, which a config names, may run; false for the name of a module, unless all code may."""
    files = trusted_files.get()
    return files is None or Path(file).expanduser().resolve() in files


def require_trust(reference: str, words: str = "") -> None:
    """
    Args:
        words: the kind of the object, for the message.

    Raises:
        UntrustedError: the code of ``reference`` must not run; a missing file has an error of its own.
    """
    if not may_run(reference.rpartition(":")[0]) and not is_missing_file(reference):
        what = f"{words} '{reference}'" if words else reference
        raise UntrustedError(f"{what} is code and was not imported: --trust imports it")


def is_missing_file(reference: str) -> bool:
    """Whether ``./file.py:attribute`` names a missing file; false for ``package.module:attribute``."""
    path = reference.rpartition(":")[0]
    return path.endswith(".py") and not Path(path).expanduser().is_file()


def load_file(path: str) -> ModuleType:
    """Import a Python file outside packages, once in a process."""
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise FileNotFoundError(f"no file {path} (looked for {file})")
    if file.suffix != ".py":
        raise ImportError(f"{path} is no Python file (*.py)")
    import hashlib

    name = f"corerl_file_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
