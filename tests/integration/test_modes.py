"""Who may write to what a run makes, whatever the umask of the shell."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path


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


def test_nothing_of_a_run_is_writable_by_all_with_umask_000(workplace, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir(mode=0o755)
    program = [sys.executable, "-m", "corerl", "train", str(workplace.config)]
    program += [f"reward.scorer={workplace.folder}/parts.py:length", "reward.num_workers=2"]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    log = (tmp_path / "log").open("w+")
    with subprocess.Popen(program, umask=0, env=environment, stdout=log, stderr=log, text=True) as process:
        seen = seen_while(process, workplace.runs, temporary)
    log.seek(0)
    assert process.returncode == 0, log.read()
    assert len([*workplace.runs.rglob("*")]) > 10
    assert seen == set()
