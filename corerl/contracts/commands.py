"""Commands: further ``corerl`` sub-commands."""

from typing import Protocol


class Command(Protocol):
    """A ``click.Command``; imported only when it is called, so that ``corerl --help`` stays quick.

    A dot in its name makes words of it: ``engine.install.x`` is called as ``corerl engine install x``.
    """

    name: str | None
