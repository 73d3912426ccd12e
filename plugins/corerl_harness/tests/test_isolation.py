"""Sandboxes and containers: what a command sees there, and their end."""

import io
import os
import shutil
import subprocess
import tarfile
import time
import uuid
from pathlib import Path

import pytest
from harness_toys import ASK

from corerl.errors import ConfigError
from corerl_harness.options import HarnessOptions
from corerl_harness.requirements import require

pytestmark = pytest.mark.xdist_group("containers")  # the end of one test removes the image with all containers

IMAGE = "localhost/corerl-harness-test"
ARGUMENTS = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
"""the defaults need rights that a container within a virtual machine lacks"""


def works(isolation):
    try:
        require(HarnessOptions("true", isolation=isolation))
    except ConfigError:
        return False
    return True


needs_bubblewrap = pytest.mark.skipif(not works("bubblewrap"), reason="bubblewrap does not work here")


@needs_bubblewrap
def test_a_sandbox_shows_the_folder_and_the_system_alone(play, tmp_path, monkeypatch):
    (tmp_path / "secret").write_text("of the run")
    result = play(
        f"cat {tmp_path}/secret /etc/shadow; ls / | tr '\\n' ' '; echo; echo x > /usr/x; pwd; echo $HOME",
        isolation="bubblewrap",
    )
    output = result.artifacts["output"]
    assert "of the run" not in output and "root:" not in output
    assert "Read-only file system" in output and output.endswith("/workspace\n/workspace\n")
    shown = {"bin", "dev", "etc", "lib", "lib32", "lib64", "logs", "proc", "sbin", "tests", "tmp", "usr", "workspace"}
    top = next(line for line in output.splitlines() if "workspace" in line).split()
    assert {name for name in top if not name.isdigit()} - shown <= {str(Path(p)).split("/")[1] for p in _interpreters()}


def _interpreters():
    import sys

    return sys.prefix, sys.base_prefix


@needs_bubblewrap
def test_a_program_in_a_sandbox_asks_the_policy(play, model):
    import sys

    program = f"{ASK}\nopen('answer.txt', 'w').write(ask('2 + 2?'))"
    result = play(
        f"{sys.executable} agent.py",
        isolation="bubblewrap",
        info={"files": {"agent.py": program}, "expected_files": {"answer.txt": "4"}},
        check_command="test -f answer.txt",
    )
    assert result.reward == 1.0 and len(model.requests) == 1


@needs_bubblewrap
def test_processes_of_a_sandbox_end_with_it(play):
    started = time.monotonic()
    result = play("setsid sleep 40 & (setsid sleep 41 &) ; sleep 42", isolation="bubblewrap", timeout=1.0)
    assert result.metrics["harness/timeout/ratio"] == (1.0, 1) and time.monotonic() - started < 10
    deadline = time.monotonic() + 5  # the kernel ends them one after the other
    while left := subprocess.run(["pgrep", "-f", "sleep 4[012]"], capture_output=True, check=False).stdout:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


@pytest.mark.parametrize("isolation", ["docker", "podman", "apptainer", "bubblewrap"])
def test_a_missing_runtime_is_refused_early(isolation, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=rf"rollout.agent.isolation: '{isolation}' does not work on this machine"):
        require(HarnessOptions("true", isolation=isolation))


@pytest.fixture
def podman(tmp_path_factory, monkeypatch):
    """Settings of podman with an image of busybox;"""
    busybox = shutil.which("busybox")
    if not shutil.which("podman") or not busybox:
        pytest.skip("podman and busybox are not here")
    settings = tmp_path_factory.mktemp("podman") / "containers.conf"
    runtime = 'runtime = "runc"\n' if shutil.which("runc") else ""
    settings.write_text(f'[engine]\n{runtime}cgroup_manager = "cgroupfs"\n')
    monkeypatch.setenv("CONTAINERS_CONF", str(settings))
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(busybox, "bin/busybox")
        for name in ("sh", "env", "sleep", "cat", "echo", "ls", "touch", "test", "bash", "mkdir", "id"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        tmp = tarfile.TarInfo("tmp")
        tmp.type, tmp.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(tmp)
    imported = subprocess.run(
        ["podman", "import", "-", IMAGE], input=archive.getvalue(), capture_output=True, check=False, timeout=60
    )
    trial = ["podman", "run", "--rm", "--network", "host", *ARGUMENTS, IMAGE, "/bin/true"]
    if imported.returncode or subprocess.run(trial, capture_output=True, check=False, timeout=60).returncode not in (
        0,
        127,
    ):
        pytest.skip("podman does not work here")
    yield
    subprocess.run(["podman", "rmi", "--force", IMAGE], capture_output=True, check=False, timeout=60)


def test_a_container_runs_the_command_and_its_check(play, model, podman, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    label = f"corerl-test={uuid.uuid4().hex}"
    result = play(
        "env; touch /kept; touch made; (sleep 300 &) ; ls /",
        isolation="podman",
        image=IMAGE,
        container_arguments=[*ARGUMENTS, f"--label={label}"],
        check_command="test -f made && test -f /kept && echo running",
    )
    output = result.artifacts["output"]
    assert result.reward == 1.0 and result.artifacts["check_output"] == "running\n"
    assert f"OPENAI_BASE_URL={model.base_url}\n" in output and "HOME=/workspace\n" in output
    assert "hf_secret" not in output
    listing = ["podman", "ps", "-a", "--filter", f"label={label}", "--format", "{{.Names}}"]
    assert subprocess.run(listing, capture_output=True, check=True).stdout == b""


def test_a_late_command_in_a_container_ends(play, podman):
    result = play(
        "echo begun; sleep 300",
        isolation="podman",
        image=IMAGE,
        container_arguments=ARGUMENTS,
        timeout=2.0,
        check_command="true",
    )
    assert result.metrics["harness/timeout/ratio"] == (1.0, 1) and result.reward == 1.0


def test_an_image_that_is_not_there_is_refused_early(podman):
    with pytest.raises(ConfigError, match="'localhost/nowhere' is not on this machine"):
        require(HarnessOptions("true", isolation="podman", image="localhost/nowhere"))


def test_keys_are_in_no_command_line(tmp_path):
    from corerl_harness.folder import Folder
    from corerl_harness.surroundings import surroundings_of

    folder = Folder(tmp_path, tmp_path, tmp_path, tmp_path, tmp_path)
    for isolation in ("none", "bubblewrap", "docker", "podman", "apptainer"):
        made = surroundings_of(HarnessOptions("true", isolation=isolation), folder, "image", "name", 60.0)
        started = made.start(["true"], {"OPENAI_API_KEY": "the-key", "HOME": "/workspace"})
        assert not any("the-key" in word for word in started.words)
        assert "the-key" in started.environment.values() and "the-key" not in repr(started)
    assert os.environ.get("OPENAI_API_KEY") != "the-key"


@pytest.mark.parametrize("isolation", ["docker", "podman", "apptainer"])
def test_an_image_keeps_its_own_path(isolation, tmp_path):
    from corerl_harness.folder import Folder
    from corerl_harness.surroundings import surroundings_of

    folder = Folder(tmp_path, tmp_path, tmp_path, tmp_path, tmp_path)
    made = surroundings_of(HarnessOptions("true", isolation=isolation), folder, "image", "name", 60.0)
    started = made.start(["true"], {"PATH": "/of/the/machine", "LANG": "C"})
    given = {*started.words, *(f"{name}={value}" for name, value in started.environment.items())}
    assert not any("PATH=/of/the/machine" in word for word in given) and "PATH" not in started.words
    if isolation != "apptainer":
        assert made.again() == [isolation, "restart", "-t", "0", "name"]
