"""Findings, machines, and the optional method of parts that examine a machine."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from corerl.contracts.config import TrainConfig
from corerl.errors import CoreRLError

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """A finding.

    Attributes:
        severity: ``error``: the run would fail; ``warning``: the run may fail, or is slower or worse than necessary;
            ``note``: information.
        key: of the config, or ''.
        sentence: the fact.
        remedy: the right value, or its source; '' of a note.
        problem: its name in docs/troubleshooting.md, or ''.
    """

    severity: Severity
    key: str
    sentence: str
    remedy: str = ""
    problem: str = ""


@dataclass(frozen=True)
class MainMemory:
    """Main memory of a machine.

    Attributes:
        limit: bytes that this process and its children may use.
        free: bytes that no process of the machine uses now, at most the limit.
        whose: the origin of the limit, in words.
    """

    limit: float
    free: float
    whose: str = "this machine"


@dataclass(frozen=True)
class Machine:
    """One of the run's machines.

    Attributes:
        gpus: number of GPUs.
        memory: bytes of each GPU; None: unknown.
        name: of the GPU; '' without one, or if planned.
        planned: another machine than this one, described by the user.
        processors: usable ones; 0: unknown.
        main: main memory; None: unknown.
    """

    gpus: int
    memory: float | None = None
    name: str = ""
    planned: bool = False
    processors: int = 0
    main: MainMemory | None = None


@runtime_checkable
class Examined(Protocol):
    """Options of a part, or a registered object, that find problems without a start."""

    def examine(self, key: str, config: TrainConfig, machine: Machine) -> Iterable[Finding | CoreRLError]:
        """Findings and errors about this part, which ``key`` selects: a missing engine, too few GPUs."""
        ...


@runtime_checkable
class QuantizedOptions(Protocol):
    """Options of a rollout backend that can sample with quantised weights."""

    @property
    def quantization(self) -> str:
        """``none``, or the type of the weights of linear layers, such as ``fp8``."""
        ...


@runtime_checkable
class ServedOptions(Protocol):
    """Options of a rollout backend whose model another server serves."""

    @property
    def served_by(self) -> str:
        """The server's address; responses of different servers are not mixed in one file."""
        ...
