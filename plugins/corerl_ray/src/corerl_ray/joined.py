"""A Ray cluster that others run: joined, and the servers that it needs."""

import os
import socket
import threading
from typing import Any

import ray

from corerl.errors import ConfigError, DeadlineError, RunError
from corerl_ray.options import RayOptions

AUTH_MODE = "RAY_AUTH_MODE"
"""``ray start`` requires the token in ~/.ray/auth_token if it exists; Ray sends it only in this mode"""


def join(arguments: dict[str, Any], options: RayOptions) -> None:
    """``ray.init`` with an address, within the deadline; starts no process, which would end with the thread."""
    errors: list[Exception] = []

    def init() -> None:
        try:
            ray.init(address=options.address, **arguments)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=init, daemon=True)
    thread.start()
    thread.join(options.connect_timeout)
    where, seconds = f"the Ray cluster at runtime.options.address={options.address}", options.connect_timeout
    if thread.is_alive():
        raise DeadlineError(f"{where} did not answer within runtime.options.connect_timeout = {seconds:g} s")
    if errors:
        asks = "" if AUTH_MODE in os.environ else f"; if the cluster requires a token, set {AUTH_MODE}=token"
        raise RunError(f"{where} cannot be used: {' '.join(str(errors[0]).split())}{asks}")


def knock(address: str, timeout: float) -> None:
    """Check that something answers at an address.

    Raises:
        ConfigError: the address is no HOST:PORT.
        DeadlineError: nothing answers in time.
    """
    host, _, port = address.rpartition(":")
    if "/" in address or not host or not port.isdigit():
        raise ConfigError("runtime.options.address", f"must be HOST:PORT of a Ray head node, or auto, not {address}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=timeout).close()
    except OSError as error:
        raise DeadlineError(
            f"no Ray cluster answers at runtime.options.address={address} ({error}): start one with "
            f"'ray start --head --port={port}', or leave the address out"
        ) from None


def servers_of() -> dict[str, str]:
    """The GCS of a joined cluster, and the raylet of this machine."""
    context = ray.get_runtime_context()
    own = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())  # type: ignore[no-untyped-call]
    return {"GCS": context.gcs_address, "raylet": f"{own['NodeManagerAddress']}:{own['NodeManagerPort']}"}
