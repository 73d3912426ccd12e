"""Removes capabilities before an untrusted program starts, and ties a process to the life of its parent."""

import ctypes
import os
import struct

PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_SECUREBITS, PR_CAP_AMBIENT = 1, 24, 28, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
CAPABILITY_VERSION_3 = 0x20080522
NOROOT_LOCKED = 0b11
SIGKILL = 9
HIGHEST = 63


def drop() -> None:
    """Drop all capabilities, also for later executions and for root.

    Raises:
        OSError: capabilities remain.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_SECUREBITS, NOROOT_LOCKED, 0, 0, 0)
    for capability in range(HIGHEST + 1):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = ctypes.create_string_buffer(struct.pack("Ii", CAPABILITY_VERSION_3, 0))
    if libc.capset(header, ctypes.create_string_buffer(24)):
        raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")


def die_with(parent: int) -> None:
    """Kill this process when the process that forked it ends.

    Args:
        parent: readable descriptor; only the parent has its other end.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    os.set_blocking(parent, False)
    try:
        if os.read(parent, 1) == b"":  # it ended before that
            os._exit(1)
    except BlockingIOError:
        os.close(parent)
