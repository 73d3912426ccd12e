"""A filter of system calls: calls that a Python program needs are allowed, all others fail.

Classic BPF as described in prctl(2) and seccomp(2); installing it needs no privilege. A denied call fails with EPERM; a
call newer than 424, for which libraries have a substitute, fails with ENOSYS. Both are ordinary errors for a program.
"""

import ctypes
import errno
import os
import struct

import syscalls  # type: ignore[import-not-found]

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, AND, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, DENY, MISSING = 0x7FFF0000, 0x80000000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SIZE_OF_ARGUMENT = 0, 4, 16, 8
X32 = 0x40000000
NEWER = 424
"""from this number on, numbers are equal on all processors, and every call has a substitute"""
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""machine -> column of the tables, AUDIT_ARCH"""

CLONE_THREAD, CLONE_NEW_OR_PTRACE = 0x10000, 0x7E020000 | 0x2000
O_TRUNC, O_TRUNC_OR_WRITE = 0x200, 0x203
FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032, 1034)
"""descriptors, flags and locks; no F_SETOWN, F_SETSIG, F_NOTIFY, F_SETLEASE, F_SETPIPE_SZ"""
IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX"""
PRCTL = (15, 16, 0x53564D41)
"""PR_SET_NAME, PR_GET_NAME, PR_SET_VMA"""


def install(pid: int) -> None:
    """Filter this process, and programs that it executes, from now on.

    Args:
        pid: of this process, the only one that may be signalled, and whose limits may be lowered.

    Raises:
        OSError: the kernel rejects the filter, or there is no filter for this processor.
    """
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no seccomp filter for {machine}")
    code = program(machine, pid)
    instructions = ctypes.create_string_buffer(code)
    description = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.create_string_buffer(description), 0, 0),
    ):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "the kernel accepts no seccomp filter")


def program(machine: str, pid: int) -> bytes:
    """The filter's instructions, 8 bytes each."""
    column, architecture = ARCHITECTURES[machine]
    steps = [
        _step(LOAD, ARCHITECTURE),
        _step(EQUAL, architecture, 1, 0),
        _step(RETURN, KILL),
        _step(LOAD, NUMBER),
        _step(AT_LEAST, X32, 0, 1),
        _step(RETURN, DENY),
    ]
    conditions = _conditions(pid)
    for name, numbers in {**syscalls.CONDITIONAL, **syscalls.ALLOWED}.items():
        if numbers[column] is not None:
            answer = conditions.get(name, [_step(RETURN, ALLOW)])
            steps += [_step(EQUAL, numbers[column], 0, len(answer)), *answer]
    return b"".join([*steps, _step(AT_LEAST, NEWER, 0, 1), _step(RETURN, MISSING), _step(RETURN, DENY)])


def _conditions(pid: int) -> dict[str, list[bytes]]:
    return {
        "clone3": [_step(RETURN, MISSING)],  # a filter cannot read its flags; the C library then uses clone
        "clone": [
            _argument(0),
            *_if(ANY_BIT, CLONE_NEW_OR_PTRACE, DENY),
            *_if(ANY_BIT, CLONE_THREAD, ALLOW),
            _step(RETURN, DENY),
        ],
        "open": _no_truncation(1),
        "openat": _no_truncation(2),
        "kill": _one_of(0, (pid,)),
        "tgkill": _one_of(0, (pid,)),
        "prlimit64": _one_of(0, (0, pid)),
        "fcntl": _one_of(1, FCNTL),
        "ioctl": _one_of(1, IOCTL),
        "prctl": _one_of(0, PRCTL),
    }


def _no_truncation(flags: int) -> list[bytes]:
    """Deny O_TRUNC without writing, which truncates a file unseen by Landlock before its version 3."""
    return [
        _argument(flags),
        _step(AND, O_TRUNC_OR_WRITE),
        *_if(EQUAL, O_TRUNC, DENY),
        _step(RETURN, ALLOW),
    ]


def _one_of(argument: int, values: tuple[int, ...]) -> list[bytes]:
    return [
        _argument(argument),
        *(step for value in values for step in _if(EQUAL, value, ALLOW)),
        _step(RETURN, DENY),
    ]


def _if(test: int, value: int, answer: int) -> list[bytes]:
    return [_step(test, value, 0, 1), _step(RETURN, answer)]


def _argument(index: int) -> bytes:
    """Load the lower half of an argument: the kernel uses no more of any of these."""
    return _step(LOAD, FIRST_ARGUMENT + SIZE_OF_ARGUMENT * index)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
