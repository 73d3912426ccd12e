"""Commands: further ``corerl`` sub-commands."""

from typing import Protocol


class Command(Protocol):
    """A ``click.Command``, imported when it is called. A dot in its name makes words: ``acme.login`` is called as
    ``corerl acme login``.
    """

    name: str | None
