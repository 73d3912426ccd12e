"""The names in /dev/shm that a run leaves there: for chaos.py, which shares the folder with other processes."""

import contextlib
import threading
from collections.abc import Iterable
from pathlib import Path

from chaos_processes import descendants

FOLDER = Path("/dev/shm")
POLL = 0.1
LOOKS = 50
"""at a new name without a maker: it is mapped a moment later, or its maker has ended"""


class Watch:
    """Looks, from ``with`` to its end, which new names are mapped by descendants of this process.

    A file is known by its inode: ``sem_open`` maps a temporary name, the one in ``maps``, and links it to its own.
    """

    def __init__(self) -> None:
        self.own: dict[int, str] = {}
        """inode -> name"""
        self._known = set(_present())
        self._looks: dict[int, int] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _go_on(self) -> None:
        while not self._is_over.wait(POLL):
            self.look()

    def look(self) -> None:
        """Find the makers of names that are new."""
        new = {inode: name for inode, name in _present().items() if inode not in self._known}
        if not new:
            return
        mapped = _mapped(descendants())
        of_any = mapped if mapped >= new.keys() else _mapped(_every_process())
        for inode, name in new.items():
            self._looks[inode] = self._looks.get(inode, 0) + 1
            if inode in mapped:
                self.own[inode] = name
            if inode in of_any or self._looks[inode] == LOOKS:
                self._known.add(inode)

    def left(self) -> list[str]:
        """Names of the run that no process has mapped: they stay."""
        present = _present()
        mapped = _mapped(_every_process())
        return sorted(name for inode, name in self.own.items() if inode in present and inode not in mapped)


def _present() -> dict[int, str]:
    """Inode -> name of every file in /dev/shm."""
    found = {}
    for path in FOLDER.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[path.stat().st_ino] = path.name
    return found


def _every_process() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _mapped(processes: Iterable[int]) -> set[int]:
    """Inodes of the files in /dev/shm that processes have mapped, under whatever name."""
    found: set[int] = set()
    for pid in processes:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
            found |= {int(line.split()[4]) for line in lines if f" {FOLDER}/" in line}
    return found
