"""The state of a script that is followed."""

from dataclasses import dataclass, field
from pathlib import Path

from corerl_verl.shell.expansion import Variables


@dataclass
class Script:
    """A script as far as it was read.

    Attributes:
        commands: expanded words of each command, in order.
        folder: of the script, for ``source``; None: no file.
        has_pipe: a pipe was read.
        mended: whether a continuation over comments was repaired.
        calls, depth: of functions, loops and scripts; of those within each other.
        jump: ``exit``, ``return``, ``break`` or ``continue``, until it has arrived; ``levels``: loops to leave.
        files: texts that the script writes, by name.
        assigned: names that any of its lines assigns.
        piped: the output of the last command before a pipe; None: not known.
        passes, passed: whether an ``exit`` with a failure is passed over; whether there was one.
        returned: whether the last ``return`` had status 0.
        scopes: of the functions that run, the variables before their own, by name.
    """

    variables: Variables
    folder: Path | None = None
    commands: list[list[str]] = field(default_factory=list)
    has_pipe: bool = False
    mended: bool = False
    calls: int = 0
    depth: int = 0
    jump: str = ""
    levels: int = 0
    passes: bool = False
    passed: bool = False
    files: dict[str, str] = field(default_factory=dict)
    assigned: set[str] = field(default_factory=set)
    piped: str | None = None
    returned: bool = True
    scopes: list[dict[str, Variables]] = field(default_factory=list)
