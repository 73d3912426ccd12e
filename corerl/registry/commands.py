"""Commands: further ``corerl`` sub-commands."""

from typing import Protocol


class Command(Protocol):
    """A ``click.Command``; imported only when it is called, so that ``corerl --help`` stays quick."""

    name: str | None
