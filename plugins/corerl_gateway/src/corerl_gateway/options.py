"""Options of the endpoint: ``rollout.multi_turn.endpoint``."""

import ipaddress
from dataclasses import dataclass

from corerl import option
from corerl.errors import ConfigError

KEY = "rollout.multi_turn.endpoint"
LOOPBACK = "127.0.0.1"
OPEN_KEY = "corerl"
"""the key of ``corerl serve`` on the loopback, without ``--api-key-env``"""


@dataclass
class EndpointOptions:
    """The options of the endpoint."""

    host: str = option(LOOPBACK, "address to listen on; others than the loopback can be reached by other machines")
    port: int = option(0, "port; 0: a free one", ge=0, le=65535)
    public_host: str | None = option(None, "name of this machine in addresses given to clients; null: host")
    max_body_mb: float = option(32.0, "largest body of a request in MiB", gt=0, le=1024)
    timeout: float = option(60.0, "deadline of headers, of a body, and of the reading of an answer, in seconds", gt=0)

    def check(self, key: str) -> None:
        """Raise ConfigError if clients could not find the endpoint."""
        if self.public_host is None and is_wildcard(self.host):
            raise ConfigError(f"{key}.public_host", f"must name this machine, since host is {self.host}")

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the endpoint."""
        return is_loopback(self.host)


def is_wildcard(host: str) -> bool:
    """Whether a host stands for all addresses of the machine.

    >>> is_wildcard("0.0.0.0"), is_wildcard("127.0.0.1"), is_wildcard("node7")
    (True, False, False)
    """
    address = _address(host)
    return not host or (address is not None and address.is_unspecified)


def is_loopback(host: str) -> bool:
    """Whether a host is reached from its own machine alone.

    >>> is_loopback("::1"), is_loopback("localhost"), is_loopback("10.0.0.7")
    (True, True, False)
    """
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
