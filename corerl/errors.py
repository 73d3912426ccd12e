"""Every exception that CoreRL raises on purpose.

::

    CoreRLError
    ├── RequestError            what was asked for is wrong; exit code 2
    │   ├── ConfigError         a key, a type, a value, sizes that do not divide
    │   ├── DataError           a data file: file, row and column are named
    │   ├── ModelError          a model folder: no tokenizer, no chat template, unknown architecture
    │   ├── UnknownNameError    no plugin registered this name
    │   ├── NameClashError      two plugins registered one name
    │   ├── PluginError         a plugin, or what it points at, cannot be imported
    │   └── UntrustedError      a config or a checkpoint names code, which was not to be run
    └── RunError                the run failed; exit code 1
        ├── RefusedError        a request to a model that no model answers: the agent may go on
        │   └── TooLongError        it is longer than a conversation may be
        ├── ExitError           code of others raised SystemExit, KeyboardInterrupt or CancelledError
        ├── MissingInputError   a part needs what the run does not compute
        ├── DeadlineError       something did not answer in its time
        ├── SaveError           a checkpoint could not be written
        ├── LostError           a worker or an engine is gone: new ones can go on; exit code 75
        │   ├── EngineDeadError     the rollout backend's engine has ended
        │   ├── WorkerDiedError     the process of a worker has ended, or gives no sign of life
        │   └── WorkerLateError     a worker does not answer; a DeadlineError, too
        ├── EngineFailsError    the rollout backend's engine ends at every request
        └── NonFiniteError      a loss or a gradient became NaN or infinite

A message is one sentence: what is wrong, where, and what would be right.
"""

from collections.abc import Sequence


class CoreRLError(Exception):
    """Base of all errors raised on purpose; the CLI prints its message and no stack trace."""

    exit_code = 1


class RequestError(CoreRLError):
    """The request itself is wrong: nothing was started."""

    exit_code = 2


class ConfigError(RequestError):
    """A configuration is wrong; ``key`` is the dotted path of the offending key ('' for the whole)."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}" if key else message)
        self.key = key


class DataError(RequestError):
    """A data file cannot be used."""


class ModelError(RequestError):
    """A model folder cannot be used."""


class UnknownNameError(RequestError):
    """No plugin registered the name that was asked for."""


class NameClashError(RequestError):
    """Two plugins registered one name."""


class PluginError(RequestError):
    """A plugin, or the object that one of its entries points at, cannot be imported."""


class UntrustedError(RequestError):
    """A config or a checkpoint names code that is not installed, and the command was not given ``--trust``."""


class RunError(CoreRLError):
    """The run started and failed."""


class RefusedError(RunError):
    """A request to a model is wrong, by no fault of the run: an agent may catch the error; else its episode fails."""


class TooLongError(RefusedError):
    """A request has more tokens than a conversation may have."""


class ExitError(RunError):
    """``… raised SystemExit``: code of others raised an error that would end a process, an event loop or a task."""


class MissingInputError(RunError):
    """A part needs what the run does not compute, because the fact that says so is not registered."""

    def __init__(self, name: str, fact: str) -> None:
        super().__init__(
            f"a part needs '{name}', which this run does not compute: the name that selects it must be registered with "
            f"{fact} (module:function names carry no facts)"
        )


class DeadlineError(RunError):
    """A wait ran past its deadline."""


class SaveError(RunError):
    """A checkpoint could not be written; those before it are whole."""


class LostError(RunError):
    """A worker or an engine is gone, or answers no more, by no fault of the request: new ones can go on.

    The exit code is ``EX_TEMPFAIL``, for what starts commands again.
    """

    exit_code = 75


class EngineDeadError(LostError):
    """The rollout backend's engine has ended, or answers no more: it can be started again.

    Attributes:
        workers: the rollout workers whose processes have ended with it, each as (machine, process id); others are left.
        is_handled: others have taken over, and whoever starts engines again knows: the same call may be tried again.
    """

    workers: tuple[tuple[str, int], ...] = ()
    is_handled: bool = False


class EngineFailsError(RunError):
    """Engines have ended again and again without a response: a new one would, too."""


class WorkerDiedError(LostError):
    """The process of a worker has ended, or gives no sign of life, and with it the run: all others are ended, too."""


class WorkerLateError(LostError, DeadlineError):
    """A worker does not answer in its time, as of a rank that hangs."""


class Stopped(BaseException):
    """The run was asked to stop by ``signal``; like KeyboardInterrupt it is no Exception, which plugins may catch."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


class NonFiniteError(RunError):
    """Something that must be a number is NaN or infinite; ``rows`` are the samples of the batch that it comes from."""

    def __init__(self, message: str, rows: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.rows = tuple(rows)


def described(error: BaseException) -> str:
    """The type and the text of an error of foreign code, in one line; of a group those of its first error.

    >>> described(ValueError("no\\nnumber"))
    'ValueError: no number'
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ExitError):
        return str(error).partition(" raised ")[2]
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "its text cannot be written"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
