"""Limits the files that a process can access (landlock(7), Linux 5.13 and later); needs no privilege."""

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Sequence

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PR_SET_NO_NEW_PRIVS = 38
PATH_BENEATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""first version -> rights added by that version"""
BIND_AND_CONNECT, SIGNALS_AND_SOCKETS = 3, 3


def restrict(readable: Sequence[str], writable: Sequence[str]) -> None:
    """Limit this process, and programs that it executes, to these files and folders.

    Args:
        readable: files and folders that can be read and executed.
        writable: files and folders that can also be written. Missing paths are ignored.

    Raises:
        OSError: the kernel has no Landlock.
    """
    version = _call(CREATE_RULESET, None, 0, 1)
    rights = RIGHTS[max(known for known in RIGHTS if known <= version)]
    attributes = struct.pack("Q", rights)
    if version >= 4:
        attributes += struct.pack("Q", BIND_AND_CONNECT)
    if version >= 6:
        attributes += struct.pack("Q", SIGNALS_AND_SOCKETS)
    rules = _call(CREATE_RULESET, ctypes.create_string_buffer(attributes, len(attributes)), len(attributes), 0)
    for paths, allowed in ((readable, EXECUTE | READ_FILE | READ_DIR), (writable, rights)):
        for path in paths:
            _allow(rules, path, allowed & rights)
    if ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(errno.EPERM, "no_new_privs")
    _call(RESTRICT_SELF, rules, 0)
    os.close(rules)


def _allow(rules: int, path: str, allowed: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(os.fstat(place).st_mode):
        allowed &= OF_FILES
    _call(ADD_RULE, rules, PATH_BENEATH, ctypes.create_string_buffer(struct.pack("=Qi", allowed, place), 12), 0)
    os.close(place)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.syscall(number, *(ctypes.c_long(each) if isinstance(each, int) else each for each in arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
