"""A run of a process of its own: who may write to its files, whatever the umask, and what it leaves behind."""

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

OWN_SHARED_MEMORY = 'mount -t tmpfs tmpfs /dev/shm && "$@" && ls -A /dev/shm'
"""a command in a mount namespace of its own, and what it leaves in shared memory, where other processes have theirs"""


def writable_by_all(folder: Path) -> set[str]:
    """Files, folders and sockets below, as far as others could reach them."""
    found = set()
    for place, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            try:
                mode = os.lstat(os.path.join(place, name)).st_mode  # noqa: PTH118
            except FileNotFoundError:
                continue
            if mode & stat.S_IWOTH and not stat.S_ISLNK(mode):
                found.add(f"{name} {mode:o}")
            elif stat.S_ISDIR(mode) and not mode & stat.S_IXOTH:
                folders.remove(name)
    return found


def seen_while(process: subprocess.Popen[str], *folders: Path) -> set[str]:
    found: set[str] = set()
    while process.poll() is None:
        for folder in folders:
            found |= writable_by_all(folder)
        time.sleep(0.02)
    return found.union(*map(writable_by_all, folders))


def test_with_umask_000_nothing_of_a_run_is_writable_by_all_and_no_temporary_file_is_left(workplace, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir(mode=0o755)
    program = [sys.executable, "-m", "corerl", "train", str(workplace.config)]
    program += [f"reward.scorer={workplace.folder}/parts.py:length", "reward.num_workers=2"]
    own = ["unshare", "--mount", "sh", "-c", OWN_SHARED_MEMORY, "sh"]
    if shutil.which("unshare") and not subprocess.run([*own, "true"], capture_output=True).returncode:
        program = [*own, *program]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    log = (tmp_path / "log").open("w+")
    with subprocess.Popen(program, umask=0, env=environment, stdout=log, stderr=log, text=True) as process:
        seen = seen_while(process, workplace.runs, temporary)
    log.seek(0)
    said = log.read()
    assert process.returncode == 0, said
    assert said.splitlines()[-1].startswith("report: ")  # and no name in shared memory
    assert not [*temporary.iterdir()] and not workplace.half_written and not [*workplace.runs.rglob(".reserve")]
    assert len([*workplace.runs.rglob("*")]) > 10
    assert seen == set()
