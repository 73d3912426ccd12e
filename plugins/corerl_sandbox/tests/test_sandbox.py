import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from corerl_rewards import folders
from corerl_sandbox import run as sandbox
from corerl_sandbox.run import Outcome, SandboxError, SandboxLimits, run
from plugins.corerl_sandbox.tests import escapes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")


SOURCES = (sandbox.HERE.parent, Path(folders.__file__).parents[1])
DENIED = ("PermissionError", "FileNotFoundError", "URLError", "OSError", "AssertionError")


def execute(program: str, stdin: str = "", **limits: float | str) -> Outcome:
    return run({"main.py": program}, stdin, SandboxLimits(**{"seconds": 10.0, **limits}))  # type: ignore[arg-type]


def attempt(statement: str, isolation: str = "strict") -> str:
    """The name of the error that a statement raises in the sandbox, or "done"."""
    program = f"try:\n    {statement}\n    print('done')\nexcept Exception as error:\n    print(type(error).__name__)"
    return execute(program, isolation=isolation).output.decode().strip()


def test_a_program_reads_and_prints() -> None:
    outcome = execute("print(int(input()) * 2)", "21\n")
    assert (outcome.how, outcome.status, outcome.output) == ("ended", 0, b"42\n")
    assert 0 < outcome.seconds < 10


def test_installed_packages_and_threads_are_there() -> None:
    program = "import threading, numpy\nt = threading.Thread(target=print, args=(numpy.arange(4).sum(),))\nt.start()"
    assert execute(program).output == b"6\n"


@pytest.mark.parametrize(
    "statement",
    [
        "import socket; socket.socket()",
        "import socket; socket.create_connection(('127.0.0.1', 22))",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1')",
        "import os; os.fork()",
        "import subprocess; subprocess.run(['/bin/true'])",
        "import os; os.posix_spawn('/bin/true', ['true'], {})",
        "import multiprocessing; multiprocessing.Process(target=print).start()",
        "import os; os.kill(os.getppid(), 0)",
        "import os; os.kill(-1, 0)",
        "import os; print(open(f'/proc/{os.getppid()}/environ').read())",
        "open('/etc/passwd').read()",
        "import os; os.listdir('/')",
        "import os; os.listdir('/tmp')",
        "open('/tmp/corerl-escaped', 'w')",
        "import ctypes; assert ctypes.CDLL(None, use_errno=True).unshare(0x10000000) == 0",
        "import os; os.memfd_create('x')",
    ],
)
def test_what_leads_out_is_denied(statement: str) -> None:
    assert attempt(statement) in DENIED


def test_a_file_of_the_user_cannot_be_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("token")
    assert attempt(f"print(open({str(secret)!r}).read())") in DENIED


def test_the_environment_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "s3cret")
    output = execute("import os; print(dict(os.environ))").output.decode()
    assert "s3cret" not in output
    assert "PATH" in output


@pytest.mark.parametrize("isolation", ["strict", "landlock"])
def test_its_folder_can_be_written_and_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = "open('a.txt', 'w').write('hello')\nimport os\nprint(open('a.txt').read(), os.getcwd())"
    text, folder = execute(program, isolation=isolation).output.decode().split()
    assert text == "hello"
    assert folder == "/scratch" if isolation == "strict" else Path(folder).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_an_endless_loop_ends_at_its_time() -> None:
    assert execute("print('begun', flush=True)\nwhile True: pass", seconds=1.0).how == "timeout"


def test_a_program_that_closes_its_output_and_sleeps_ends_at_its_time() -> None:
    assert execute("import os, time\nos.close(1)\ntime.sleep(60)", seconds=1.0).how == "timeout"


def test_endless_output_is_cut() -> None:
    outcome = execute("while True: print('x' * 100_000)", output=300_000)
    assert (outcome.how, len(outcome.output)) == ("output", 300_000)


@pytest.mark.parametrize(
    "program",
    [
        "bytearray(2 << 30)",
        "open('large', 'wb').write(bytes(20 << 20))",
        "import sys; sys.exit(3)",
        "1 / 0",
        "import os; os.abort()",
        "import ctypes; ctypes.string_at(0)",
        "while True: __import__('os').fork()",
        "not python",
    ],
)
def test_a_program_that_fails_has_a_status(program: str) -> None:
    outcome = execute(program)
    assert outcome.how == "ended"
    assert outcome.status != 0


def test_too_many_threads_are_an_error_of_the_program() -> None:
    program = "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    before = set(threading.enumerate())  # with what earlier tests left
    assert execute(program).status != 0
    assert len(set(threading.enumerate()) - before) < 5


@pytest.fixture
def victim() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def _traits(pid: int, file: Path) -> list[object]:
    """What a program must not be able to change."""
    found = file.stat()
    return [
        *(resource.prlimit(pid, what) for what in (resource.RLIMIT_CPU, resource.RLIMIT_NOFILE)),
        os.getpriority(os.PRIO_PROCESS, pid),
        os.sched_getaffinity(pid),
        os.sched_getscheduler(pid),
        (found.st_mode, found.st_mtime_ns, found.st_nlink, file.read_text()),
        os.listxattr(file),
    ]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of some system calls are those of x86-64")
@pytest.mark.parametrize(("isolation", "seen"), [("strict", set()), ("landlock", {"stat", "readlink"})])
def test_no_attempt_reaches_a_process_or_a_file_outside(
    tmp_path: Path, victim: "subprocess.Popen[bytes]", isolation: str, seen: set[str]
) -> None:
    """At the level landlock names, sizes and times of files can be found out; docs/rewards-isolation.md says so."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("kept")
    link.symlink_to("secret")
    before, own = _traits(victim.pid, file), _traits(os.getpid(), file)
    outcome = execute(escapes.program(victim.pid, str(file), str(link)), isolation=isolation)
    results = json.loads(outcome.output)
    assert {*results} == {*escapes.ESCAPES}
    assert {name for name, number in results.items() if number is None} == seen
    assert victim.poll() is None
    assert (_traits(victim.pid, file), _traits(os.getpid(), file)) == (before, own)
    by_path = [results[name] for name in ("truncate by path", "truncate by opening", "F_SETOWN")]
    assert by_path == [1, 1, 1], "EPERM is seccomp's answer, EACCES Landlock's, which older versions do not give"


NEST = """
import os
os.symlink("/", "root")
os.symlink("..", "up")
os.makedirs(b"\\xff\\xfe/\\n")
here = os.open(".", os.O_RDONLY)
try:
    for _ in range(DEPTH):
        os.mkdir("d", mode=MODE, dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
except OSError as error:
    print(error.errno)
print("made")
"""


@pytest.mark.parametrize("isolation", ["strict", "landlock"])
def test_what_a_program_leaves_is_removed_however_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = NEST.replace("DEPTH", "3000").replace("MODE", "0o700")
    outcome = execute(program, isolation=isolation)
    assert (outcome.how, outcome.output.splitlines()[-1:]) == ("ended", [b"made"])
    assert list(tmp_path.iterdir()) == []


def test_in_memory_a_program_can_make_4096_files() -> None:
    output = execute(NEST.replace("DEPTH", "20_000").replace("MODE", "0o700")).output
    assert output == b"28\nmade\n"


def test_the_disk_that_all_files_take_together_is_limited() -> None:
    fill = "for n in range(100): open(str(n), 'wb').write(bytes(10 << 20))"
    outcome = execute(fill)
    assert (outcome.how, outcome.status) == ("ended", 1)
    outcome = execute(fill + "\nimport time; time.sleep(60)", isolation="landlock")
    assert outcome.how == "disk"


def _replace(monkeypatch: pytest.MonkeyPatch, folder: Path, **functions: str) -> None:
    """Let modules of the sandbox fail as they do where the kernel lacks something."""
    monkeypatch.setattr(sandbox, "_refused", [])
    shutil.copytree(sandbox.HERE, folder, dirs_exist_ok=True)
    for module, function in functions.items():
        (folder / f"{module}.py").write_text(f"def {function}(*_):\n    raise OSError(38, 'no {module} here')\n")
    monkeypatch.setattr(sandbox, "HERE", folder)


def test_without_seccomp_only_best_effort_runs_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _replace(monkeypatch, tmp_path, seccomp="install")
    for isolation in ("strict", "landlock"):
        with pytest.raises(SandboxError, match="no seccomp here"):
            execute("print(1)", isolation=isolation)
    assert execute("print(1)", isolation="best_effort").output == b"1\n"


def test_without_namespaces_strict_runs_no_program_and_the_others_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _replace(monkeypatch, tmp_path, namespaces="enter")
    with pytest.raises(SandboxError, match="no namespaces here"):
        execute("print(1)")
    for isolation in ("landlock", "best_effort"):
        assert attempt("open('/etc/passwd')", isolation) == "PermissionError"
        assert attempt("import socket; socket.socket()", isolation) == "PermissionError"


def test_without_namespaces_and_landlock_files_are_separated_by_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _replace(monkeypatch, tmp_path, namespaces="enter", landlock="restrict")
    with pytest.raises(SandboxError, match=r"no Landlock .*no landlock here"):
        execute("print(1)", isolation="landlock")
    assert attempt("open('/etc/passwd')", "best_effort") == "done"
    assert attempt("import socket; socket.socket()", "best_effort") == "PermissionError"


def test_namespaces_hold_without_landlock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _replace(monkeypatch, tmp_path, landlock="restrict")
    assert attempt("open('/etc/passwd')") == "FileNotFoundError"
    assert attempt("open('/usr/corerl', 'w')") in DENIED
    assert attempt("import os; os.mkdir('/corerl')") in DENIED


AS_NOBODY = """
import os, sys
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
from corerl_sandbox.run import SandboxLimits, run
print(run({"main.py": sys.argv[2]}, "", SandboxLimits(seconds=10.0, isolation=sys.argv[1])).output.decode())
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of some system calls are those of x86-64")
@pytest.mark.parametrize(("isolation", "seen"), [("strict", set()), ("landlock", {"stat", "readlink"})])
def test_programs_are_isolated_without_any_privilege(isolation: str, seen: set[str]) -> None:
    """In a process of its own, by an interpreter that everybody may use; as nobody where this process is root."""
    interpreter = shutil.which("python3", path="/usr/bin")
    if interpreter is None:
        pytest.skip("there is no interpreter that everybody may use")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        file, link = Path(folder) / "file", Path(folder) / "link"
        file.write_text("kept")
        file.chmod(0o666)
        link.symlink_to("secret")
        done = subprocess.run(
            [interpreter, "-c", AS_NOBODY, isolation, escapes.program(os.getpid(), str(file), str(link))],
            env={"TMPDIR": folder, "PYTHONPATH": os.pathsep.join(map(str, SOURCES))},
            capture_output=True,
            text=True,
            timeout=60,
        )
        if "unshare" in done.stderr:
            pytest.skip("this machine lets no user make user namespaces")
        assert done.returncode == 0, done.stderr
        assert {name for name, number in json.loads(done.stdout).items() if number is None} == seen
        assert {*Path(folder).iterdir()} == {file, link}
