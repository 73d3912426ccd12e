"""A filter of system calls: no sockets, no further processes, no signals to others, no way out of a sandbox.

Classic BPF as prctl(2) and seccomp(2) describe it; installing one needs no privilege. A call that is denied fails with
EPERM, which a program sees as an ordinary error.
"""

import ctypes
import errno
import platform
import struct

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, DENY, MISSING = 0x7FFF0000, 0x80000000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
CLONE_THREAD = 0x10000
X32 = 0x40000000

ANYWHERE = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "clone3": 435, "pidfd_open": 434, "pidfd_getfd": 438,
}  # fmt: skip
NUMBERS: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (0xC000003E, {
        "clone": 56, "kill": 62, "tgkill": 234, "fork": 57, "vfork": 58, "tkill": 200, "rt_sigqueueinfo": 129,
        "rt_tgsigqueueinfo": 297, "socket": 41, "connect": 42, "accept": 43, "bind": 49, "listen": 50, "ptrace": 101,
        "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "unshare": 272, "setns": 308, "mount": 165,
        "umount2": 166, "pivot_root": 155, "chroot": 161, "open_by_handle_at": 304, "keyctl": 250, "add_key": 248,
        "request_key": 249, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "memfd_create": 319, "shmget": 29,
        "msgget": 68, "semget": 64, "mq_open": 240, "init_module": 175, "finit_module": 313, "delete_module": 176,
        "kexec_load": 246, "reboot": 169, "swapon": 167, "swapoff": 168, "clock_settime": 227, "settimeofday": 164,
    }),
    "aarch64": (0xC00000B7, {
        "clone": 220, "kill": 129, "tgkill": 131, "tkill": 130, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240,
        "socket": 198, "connect": 203, "accept": 202, "bind": 200, "listen": 201, "ptrace": 117,
        "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "unshare": 97, "setns": 268, "mount": 40,
        "umount2": 39, "pivot_root": 41, "chroot": 51, "open_by_handle_at": 265, "keyctl": 219, "add_key": 217,
        "request_key": 218, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "memfd_create": 279,
        "shmget": 194, "msgget": 186, "semget": 190, "mq_open": 180, "init_module": 105, "finit_module": 273,
        "delete_module": 106, "kexec_load": 104, "reboot": 142, "swapon": 224, "swapoff": 225, "clock_settime": 112,
        "settimeofday": 170,
    }),
}  # fmt: skip
CONDITIONAL = ("clone", "clone3", "kill", "tgkill")


def install(pid: int) -> None:
    """Filter this process, and what it executes, from now on.

    Args:
        pid: of this process: the one to which signals may be sent.

    Raises:
        OSError: the kernel does not take the filter, or nobody wrote one for this processor.
    """
    machine = platform.machine()
    if machine not in NUMBERS:
        raise OSError(errno.ENOSYS, f"no seccomp filter for {machine}")
    code = _program(*NUMBERS[machine], pid)
    instructions = ctypes.create_string_buffer(code)
    description = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.create_string_buffer(description), 0, 0),
    ):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "the kernel takes no seccomp filter")


def _program(architecture: int, own: dict[str, int], pid: int) -> bytes:
    numbers = own | ANYWHERE
    program = [
        _step(LOAD, ARCHITECTURE),
        _step(EQUAL, architecture, 1, 0),
        _step(RETURN, KILL),
        _step(LOAD, NUMBER),
        _step(AT_LEAST, X32, 0, 1),
        _step(RETURN, DENY),
    ]
    for name, number in numbers.items():
        if name not in CONDITIONAL:
            program += [_step(EQUAL, number, 0, 1), _step(RETURN, DENY)]
    program += [_step(EQUAL, numbers["clone3"], 0, 1), _step(RETURN, MISSING)]  # the C library then takes clone
    for name, test, value in (("clone", ANY_BIT, CLONE_THREAD), ("kill", EQUAL, pid), ("tgkill", EQUAL, pid)):
        program += [
            _step(EQUAL, numbers[name], 0, 4),
            _step(LOAD, FIRST_ARGUMENT),
            _step(test, value, 0, 1),
            _step(RETURN, ALLOW),
            _step(RETURN, DENY),
        ]
    return b"".join([*program, _step(RETURN, ALLOW)])


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
