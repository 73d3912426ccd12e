"""What a part says of the machine that a run is to have, before anything is loaded."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from corerl.contracts.config import TrainConfig
from corerl.errors import CoreRLError

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One finding about a run.

    Attributes:
        severity: ``error``: the run would end with it; ``warning``: it may, or is slower or worse than it need be;
            ``note``: to know.
        key: of the config, '' if it belongs to none.
        sentence: the fact.
        remedy: the right value or a place that names it; '' of a note.
        problem: its name in docs/troubleshooting.md, or ''.
    """

    severity: Severity
    key: str
    sentence: str
    remedy: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Machine:
    """One of the run's machines.

    Attributes:
        gpus: their number.
        memory: bytes of each, None: not known.
        name: of the GPU, '' if there is none or it is planned.
        planned: named by the user; nothing that is installed or attached here holds for it.
    """

    gpus: int
    memory: float | None = None
    name: str = ""
    planned: bool = False


class Examined(Protocol):
    """An optional method of a part's options, or of a registered target."""

    def examine(self, key: str, config: TrainConfig, machine: Machine) -> Iterable[Finding | CoreRLError]:
        """Findings about this part on this machine, such as a missing engine or too few GPUs; an error is one too.

        Args:
            key: that selects the part.
        """
        ...
