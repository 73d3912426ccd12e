"""Network interfaces of this machine.

Without an interface, gloo listens at the address of the machine's own name. Debian and Ubuntu write this name into
/etc/hosts at 127.0.1.1, which no other machine reaches.
"""

import ipaddress
import os
import socket

import psutil


def of_address(address: str) -> str | None:
    """The name of the interface with this address; None: no interface has it."""
    wanted = _canonical(address)
    for name, own in psutil.net_if_addrs().items():
        if wanted in {_canonical(each.address) for each in own if each.family in (socket.AF_INET, socket.AF_INET6)}:
            return str(name)
    return None


def toward(host: str, port: int) -> str | None:
    """The address from which this machine reaches a host, which gets no packet; None: there is no route."""
    try:
        for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, protocol) as asking:
                asking.connect(place)
                return str(asking.getsockname()[0])
    except OSError:
        pass
    return None


def loopback() -> str | None:
    """The name of the loopback interface."""
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)


def variables(interface: str) -> dict[str, str]:
    """Variables with which gloo and NCCL use an interface, without those that this process's environment has."""
    found = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}  # without =, NCCL takes a prefix
    return {name: value for name, value in found.items() if name not in os.environ}


def of_gloo() -> str:
    """The address at which gloo listens in this process, and the reason, for a message."""
    named = os.environ.get("GLOO_SOCKET_IFNAME")
    if named is None:
        return f"{toward(socket.gethostname(), 0) or 'no address'}, the address of this machine's name in /etc/hosts"
    first = named.split(",")[0]
    own = [each.address for each in psutil.net_if_addrs().get(first, ()) if each.family == socket.AF_INET]
    return f"{own[0] if own else 'no address'} (GLOO_SOCKET_IFNAME={named})"


def _canonical(address: str) -> str:
    try:
        return str(ipaddress.ip_address(address.partition("%")[0]))
    except ValueError:
        return address
