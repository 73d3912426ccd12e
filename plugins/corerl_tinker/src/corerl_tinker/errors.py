"""The error of a client's request."""

from corerl.errors import CoreRLError


class UserError(CoreRLError):
    """A request that the client must change; one sentence, which the client gets."""
