"""A process in its own namespaces: only the given files, no other processes to signal, no network (namespaces(7)).

Needs no privilege if users can create user namespaces on the machine, else CAP_SYS_ADMIN. Does not use pathlib, whose
import would take a third of the start time.
"""
# ruff: noqa: PTH103, PTH110, PTH112, PTH114, PTH120, PTH123, PTH211

import ctypes
import errno
import os
import re
from collections.abc import Iterable, Mapping, Sequence

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_PRIVATE, MS_RELATIME = 16384, 1 << 18, 1 << 21
ST_RELATIME, KEPT = 4096, 0b1111 | 1024 | 2048
"""flags of statvfs that a mount must keep; they equal those of mount(2), except relatime"""
MNT_DETACH = 2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
NOBODY = 65534
MOST_FILES = 4096


def enter(readable: Sequence[str], devices: Sequence[str], scratch: str, inside: str, size: int) -> None:
    """Move this process into its own namespaces; its children are in a PID namespace, in which the first child is 1.

    Args:
        readable: files and folders that are visible, under their names, read-only.
        devices: device files that are visible.
        scratch: an existing folder; its plain files are copied to ``inside``.
        inside: folder in memory, the only one that can be written; the working directory.
        size: bytes of all files in ``inside`` together, at most 4,096 files.

    Raises:
        OSError: the machine does not allow it; the process can then not be used any more.
    """
    files = {entry.name: _content(entry.path) for entry in os.scandir(scratch) if entry.is_file()}
    _unshare()
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", scratch, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m,nr_inodes=4096")
    _show(readable, scratch)
    for device in devices:
        _bind(device, scratch + device)
    place = scratch + inside
    os.makedirs(place)
    _mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, f"mode=700,size={size},nr_inodes={MOST_FILES}")
    _write(files, place)
    _mount(None, scratch, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    _pivot(scratch)
    os.chdir(inside)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _write(files: Mapping[str, bytes], folder: str) -> None:
    for name, content in files.items():
        with open(f"{folder}/{name}", "wb") as file:
            file.write(content)


def _unshare() -> None:
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    others = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
    if libc.unshare(CLONE_NEWUSER | others) == 0:
        for file, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{NOBODY} {user} 1"),
            ("gid_map", f"{NOBODY} {group} 1"),
        ):
            with open(f"/proc/self/{file}", "w") as map_file:
                map_file.write(text)
    elif libc.unshare(others):
        raise _failed("unshare")
    libc.sethostname(b"sandbox", 7)


def _show(readable: Sequence[str], root: str) -> None:
    """Mount files and folders below ``root``, each once; a link to a mounted file stays a link."""
    shown: list[str] = []
    for path in sorted(readable, key=lambda path: (os.path.islink(path), path)):
        target = os.path.realpath(path)
        if not os.path.exists(target) or _within(path, shown):
            continue
        if os.path.islink(path) and _within(target, shown):
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            os.symlink(target, root + path)
            continue
        _bind(target, root + path)
        shown.append(path)
    _make_read_only(root)


def _within(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def _bind(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb"):
            pass
    _mount(source, target, None, MS_BIND | MS_REC)


def _make_read_only(root: str) -> None:
    """Make all mounts below ``root`` read-only, including submounts of a folder."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        escaped = [line.split(" ")[4] for line in lines]
    for place in (re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), each) for each in escaped):
        if place.startswith(root + "/"):
            present = os.statvfs(place).f_flag
            kept = present & KEPT | (MS_RELATIME if present & ST_RELATIME else 0)
            _mount(None, place, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | kept)


def _pivot(root: str) -> None:
    """Make ``root`` the root of the file system."""
    os.chdir(root)
    libc = ctypes.CDLL(None, use_errno=True)
    machine = os.uname().machine
    if machine not in PIVOT_ROOT:
        raise OSError(errno.ENOSYS, f"pivot_root has no known number on {machine}")
    if libc.syscall(PIVOT_ROOT[machine], b".", b"."):
        raise _failed("pivot_root")
    if libc.umount2(b".", MNT_DETACH):
        raise _failed("umount2")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    if libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]):
        raise _failed(f"mount {target}")


def _failed(what: str) -> OSError:
    return OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
