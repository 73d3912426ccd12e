"""What a program tries in the sandbox against a process, a file and a link outside: statement by statement, by name."""

import json

ESCAPES = {
    "prlimit of the processor time": "resource.prlimit(PID, resource.RLIMIT_CPU, (0, 0))",
    "prlimit of the files": "resource.prlimit(PID, resource.RLIMIT_NOFILE, (1, 1))",
    "prlimit of the parent": "resource.prlimit(os.getppid() or PID, resource.RLIMIT_NOFILE, (1, 1))",
    "setpriority": "os.setpriority(os.PRIO_PROCESS, PID, 19)",
    "setpriority of the user": "os.setpriority(os.PRIO_USER, os.getuid(), 19)",
    "sched_setaffinity": "os.sched_setaffinity(PID, {0})",
    "sched_setscheduler": "os.sched_setscheduler(PID, os.SCHED_IDLE, os.sched_param(0))",
    "ioprio_set": "call(IOPRIO_SET, 1, PID, 3 << 13)",
    "chmod": "os.chmod(FILE, 0)",
    "utime": "os.utime(FILE, (0, 0))",
    "setxattr": "os.setxattr(FILE, 'user.corerl', b'x')",
    "getxattr": "os.listxattr(FILE)",
    "chown": "os.chown(FILE, os.getuid(), os.getgid())",
    "truncate by path": "os.truncate(FILE, 0)",
    "truncate by opening": "os.open(FILE, os.O_RDONLY | os.O_TRUNC)",
    "stat": "os.stat(FILE)",
    "readlink": "os.readlink(LINK)",
    "read": "open(FILE).read()",
    "write": "open(FILE, 'a')",
    "unlink": "os.unlink(FILE)",
    "rename": "os.rename(FILE, FILE + '2')",
    "link": "os.link(FILE, 'mine')",
    "open by a link": "(os.symlink(FILE, 'way'), open('way').read())",
    "kill": "os.kill(PID, 9)",
    "kill all": "os.kill(-1, 9)",
    "tgkill": "call(TGKILL, PID, PID, 9)",
    "tkill": "call(TKILL, PID, 9)",
    "rt_sigqueueinfo": "call(RT_SIGQUEUEINFO, PID, 9, bytes(128))",
    "pidfd_open": "os.pidfd_open(PID)",
    "ptrace": "call(PTRACE, 16, PID, 0, 0)",
    "process_vm_readv": "call(PROCESS_VM_READV, PID, 0, 0, 0, 0, 0)",
    "socket": "socket.socket()",
    "socketpair": "socket.socketpair()",
    "connect by IPv6": "socket.socket(socket.AF_INET6)",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "io_uring_setup": "call(425, 1, bytes(120))",
    "bpf": "call(BPF, 0, bytes(64), 64)",
    "F_SETOWN": "fcntl.fcntl(0, fcntl.F_SETOWN, PID)",
    "F_SETSIG": "fcntl.fcntl(0, fcntl.F_SETSIG, 9)",
    "F_SETLEASE": "fcntl.fcntl(0, fcntl.F_SETLEASE, fcntl.F_RDLCK)",
    "TIOCSTI": "fcntl.ioctl(0, 0x5412, b'x')",
    "/proc": "os.listdir('/proc')",
    "/proc/self": "open('/proc/self/status').read()",
    "/proc of the process": "open(f'/proc/{PID}/environ').read()",
    "/sys": "os.listdir('/sys')",
    "/": "open('/etc/hostname').read()",
    "fork": "os.fork() or os._exit(0)",
    "vfork": "call(VFORK) or os._exit(0)",
    "clone3": "call(435, (0).to_bytes(32, 'little') + (17).to_bytes(32, 'little'), 64) or os._exit(0)",
    "clone": "call(CLONE, 17, 0, 0, 0, 0) or os._exit(0)",
    "posix_spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "memfd_create": "os.memfd_create('x')",
    "memfd_create and execute": "os.execve(os.memfd_create('x'), ['x'], {})",
    "unshare": "call(UNSHARE, 0x10000000)",
    "setns": "call(SETNS, 0, 0)",
    "mount": "call(MOUNT, b'none', b'.', b'tmpfs', 0, 0)",
    "chroot": "os.chroot('.')",
    "shmget": "call(SHMGET, 0x636f, 4096, 0o1666)",
    "mq_open": "call(MQ_OPEN, b'corerl', 0o102, 0o666, 0)",
    "add_key": "call(ADD_KEY, b'user', b'corerl', b'x', 1, -3)",
    "inotify": "call(INOTIFY_INIT1, 0)",
    "mknod": "os.mkfifo('pipe')",
    "setsid": "os.setsid()",
    "setuid": "os.setuid(0)",
    "sethostname": "socket.sethostname('x')",
}
"""name -> statement that raises OSError when it is denied"""

_X86_64 = {
    "IOPRIO_SET": 251, "TGKILL": 234, "TKILL": 200, "RT_SIGQUEUEINFO": 129, "PTRACE": 101, "PROCESS_VM_READV": 310,
    "BPF": 321, "VFORK": 58, "CLONE": 56, "UNSHARE": 272, "SETNS": 308, "MOUNT": 165, "SHMGET": 29, "MQ_OPEN": 240,
    "ADD_KEY": 248, "INOTIFY_INIT1": 294,
}  # fmt: skip


def program(pid: int, file: str, link: str) -> str:
    """Prints, as JSON, the error number of each statement, or null for one that went through."""
    return f"""
import ctypes, fcntl, json, os, resource, socket
PID, FILE, LINK = {pid}, {file!r}, {link!r}
{"; ".join(f"{name} = {number}" for name, number in _X86_64.items())}
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "denied")
    return result
results = {{}}
for name, statement in json.loads({json.dumps(json.dumps(ESCAPES))}).items():
    try:
        eval(statement)
        results[name] = None
    except OSError as error:
        results[name] = error.errno
print(json.dumps(results))
"""
