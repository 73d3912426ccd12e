import sys
import tempfile
import threading
from pathlib import Path

import pytest

from corerl_rewards.sandbox import run as sandbox
from corerl_rewards.sandbox.run import Outcome, SandboxError, SandboxLimits, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")


def execute(program: str, stdin: str = "", **limits: float) -> Outcome:
    return run({"main.py": program}, stdin, SandboxLimits(**{"seconds": 10.0, **limits}))  # type: ignore[arg-type]


def attempt(statement: str) -> str:
    """The name of the error that a statement raises in the sandbox, or "done"."""
    program = f"try:\n    {statement}\n    print('done')\nexcept Exception as error:\n    print(type(error).__name__)"
    return execute(program).output.decode().strip()


def test_a_program_reads_and_prints() -> None:
    assert execute("print(int(input()) * 2)", "21\n") == Outcome("ended", 0, b"42\n")


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
    assert attempt(statement) in ("PermissionError", "URLError", "OSError", "AssertionError")


def test_a_file_of_the_user_cannot_be_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("token")
    assert attempt(f"print(open({str(secret)!r}).read())") == "PermissionError"


def test_the_environment_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "s3cret")
    output = execute("import os; print(dict(os.environ))").output.decode()
    assert "s3cret" not in output
    assert "PATH" in output


def test_its_folder_can_be_written_and_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = "open('a.txt', 'w').write('hello')\nimport os\nprint(open('a.txt').read(), os.getcwd())"
    text, folder = execute(program).output.decode().split()
    assert text == "hello"
    assert Path(folder).parent == tmp_path
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
    assert execute(program).status != 0
    assert threading.active_count() < 20


def test_a_sandbox_that_cannot_be_set_up_is_no_outcome(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("stage.py", "landlock.py"):
        (tmp_path / name).write_text((sandbox.HERE / name).read_text())
    (tmp_path / "seccomp.py").write_text("def install(pid):\n    raise OSError(38, 'no seccomp here')\n")
    monkeypatch.setattr(sandbox, "HERE", tmp_path)
    with pytest.raises(SandboxError, match="no seccomp here"):
        execute("print(1)")
    assert execute("print(1)", strict=False).output == b"1\n"


def test_without_user_namespaces_files_are_separated_by_landlock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("seccomp.py", "landlock.py"):
        (tmp_path / name).write_text((sandbox.HERE / name).read_text())
    stage = (
        (sandbox.HERE / "stage.py").read_text().replace("user, group = os.getuid(), os.getgid()", "raise OSError(1)")
    )
    (tmp_path / "stage.py").write_text(stage)
    monkeypatch.setattr(sandbox, "HERE", tmp_path)
    assert attempt("open('/etc/passwd')") == "PermissionError"
    assert attempt("import socket; socket.socket()") == "PermissionError"
    (tmp_path / "landlock.py").write_text("def restrict(*_):\n    raise OSError(38, 'no Landlock here')\n")
    with pytest.raises(SandboxError, match=r"neither user namespaces nor Landlock .*no Landlock here"):
        execute("print(1)")
