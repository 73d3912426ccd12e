"""Permissions of files as everybody has them, for tests that root runs."""

import contextlib
import ctypes
import os
from collections.abc import Iterator

VERSION_3 = 0x20080522
OVERRIDES = 0b110
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH"""


@contextlib.contextmanager
def rights_of_anybody() -> Iterator[None]:
    """This thread, and those that it starts, read and write by the permissions of files, even if root runs them."""
    if os.geteuid() != 0:
        yield
        return
    header, libc = (ctypes.c_uint32 * 2)(VERSION_3, 0), ctypes.CDLL(None, use_errno=True)
    found = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, found) == 0
    fewer = (ctypes.c_uint32 * 6)(*found)
    fewer[0] &= ~OVERRIDES
    assert libc.capset(header, fewer) == 0
    try:
        yield
    finally:
        assert libc.capset(header, found) == 0
