"""The same commands on other machines: locale, home, output, cores, memory, file systems, proxies, paths, users."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

CORERL = [sys.executable, "-m", "corerl"]
USER = "4242"
"""a number that no user has"""
LIMIT = 2 * 2**30
PATH = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
HOME = {"HOME": os.environ.get("HOME", "/")}
NOWHERE = "http://127.0.0.1:9"
ALONE = ["unshare", "--mount", "sh", "-c"]
BASE = sys.base_prefix
# another user may enter no home of root: the interpreter there is put into one that all may enter
ENTER = (
    f"mount --bind {BASE} /mnt && mount -t tmpfs -o mode=755 none /root && mkdir -p {BASE} && mount --move /mnt {BASE}"
)
STRANGER = (
    f'{ENTER if BASE.startswith("/root/") else ":"}; exec setpriv --reuid {USER} --regid {USER} --clear-groups "$@"'
)

every_step = pytest.mark.skipif(not os.environ.get("CORERL_FIRST_CONTACT"), reason="CORERL_FIRST_CONTACT=1")


class Machine(NamedTuple):
    """How a command is started: words before it, environment variables, name of its folder."""

    before: Sequence[str] = ()
    env: Mapping[str, str] = HOME
    folder: str = "work"
    as_root: bool = False


MACHINES = {
    "LANG=C": Machine(env=HOME | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}),
    "no HOME": Machine(env={}),
    "a home that cannot be written": Machine(env={"HOME": "/proc"}),
    "no output": Machine(["sh", "-c", 'exec "$@" >&-', "sh"]),
    "one core": Machine(["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]),
    "2 GiB": Machine(["sh", "-c", 'echo $$ > "$CGROUP/cgroup.procs"; exec "$@"', "sh"], as_root=True),
    "no /dev/shm": Machine(
        [*ALONE, 'mount -t tmpfs none /dev/shm && mount -o remount,ro /dev/shm; exec "$@"', "sh"], as_root=True
    ),
    "a temporary folder without programs": Machine(
        [*ALONE, 'mount -t tmpfs -o noexec none /mnt; exec "$@"', "sh"], HOME | {"TMPDIR": "/mnt"}, as_root=True
    ),
    "proxies": Machine(env=HOME | dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "ALL_PROXY"), NOWHERE)),
    "a path with a space and an accent": Machine(folder="é b", env=HOME | {"LC_ALL": "C"}),
    "3 GiB of addresses a process": Machine(["prlimit", f"--as={3 * 2**30}"]),
    "a user without a name, an installation of root": Machine([*ALONE, STRANGER, "sh"], env={}, as_root=True),
}

every_machine = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES.keys())


@contextlib.contextmanager
def memory_group() -> Iterator[str]:
    """A new control group of 2 GiB."""
    root, name = Path("/sys/fs/cgroup"), f"corerl-{os.getpid()}"
    second = (root / "cgroup.controllers").exists()
    group = root / name if second else root / "memory" / name
    try:
        group.mkdir()
        (group / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(LIMIT))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group of this test: {error}")
    try:
        yield str(group)
    finally:
        group.rmdir()


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def on(machine: Machine, place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of corerl on a machine, in a folder of its own."""
    if machine.as_root and os.geteuid() != 0:
        pytest.skip("only root can make such a machine")
    if machine.before and not shutil.which(machine.before[0]):
        pytest.skip(f"there is no {machine.before[0]}")
    folder = place / machine.folder
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        env = {**PATH, **machine.env}
        if any("$CGROUP" in word for word in machine.before):
            env["CGROUP"] = stack.enter_context(memory_group())
        return subprocess.run(
            [*machine.before, *CORERL, *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=600
        )


@every_machine
def test_the_program_starts(machine: Machine, place: Path) -> None:
    done = on(machine, place, "--help")
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert "train" in done.stdout or ">&-" in " ".join(machine.before)


@every_step
@pytest.mark.slow
@every_machine
def test_a_step_is_checked_and_trained(machine: Machine, material: Path, place: Path) -> None:
    folder = place / machine.folder
    shutil.copytree(material, folder)
    (folder / "config.yaml").write_text(
        """
        model: {path: model}
        data: {train_files: [data/train.parquet], train_batch_size: 4, max_prompt_length: 64, max_response_length: 4}
        actor: {ppo_mini_batch_size: 4}
        rollout: {n: 2}
        trainer: {total_training_steps: 1}
        tracking: {experiment_name: machines}
        """
    )
    stranger = STRANGER in machine.before
    if stranger:
        for each in [place, folder, *folder.rglob("*")]:
            os.chown(each, int(USER), int(USER))
    for command in ("check", "train"):
        done = on(machine, place, command, "config.yaml")
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    [metrics] = folder.glob("runs/machines/*/metrics.jsonl")
    assert '"step": 1' in metrics.read_text()
