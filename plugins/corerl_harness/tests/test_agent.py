"""Episodes of the agent: its folder, its variables, its scores."""

import asyncio
import os
import sys
import tempfile
import time
from types import SimpleNamespace

import pytest
from harness_toys import ASK

from corerl.contracts.agents import AgentContext, Task
from corerl.errors import DataError, RunError
from corerl_harness.agent import HarnessAgent
from corerl_harness.options import HarnessOptions

PYTHON = [sys.executable, "-I", "-S"]


def test_a_program_asks_the_policy_and_its_folder_is_checked(play, model, tmp_path):
    program = f"{ASK}\nopen('answer.txt', 'w').write(ask(open('PROMPT.md').read()))"
    result = play(
        f"{sys.executable} agent.py",
        info={"files": {"agent.py": program, "missing.py": None}, "expected_files": {"answer.txt": "4\n"}},
    )
    assert result.reward == 1.0 and result.artifacts == {"output": ""}
    [(path, key, body)] = model.requests
    assert (path, key) == ("/e1/v1/chat/completions", "Bearer key-of-the-episode")
    assert body["messages"][0]["content"] == "You add.\n\n2 + 2?\n"
    assert list(tmp_path.iterdir()) == []


def test_the_variables_name_the_endpoint_and_nothing_of_the_run(play, model, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("SEARCH_KEY", "given on purpose")
    result = play("env; pwd", environment={"SEARCH": "${env:SEARCH_KEY}"})
    lines = dict(line.split("=", 1) for line in result.artifacts["output"].splitlines() if "=" in line)
    root = model.base_url.removesuffix("/v1")
    assert {name: lines[name] for name in lines if name.endswith(("URL", "API_KEY"))} == {
        **dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "CORERL_API_KEY"), "key-of-the-episode"),
        **{"OPENAI_BASE_URL": model.base_url, "ANTHROPIC_BASE_URL": root, "CORERL_BASE_URL": root},
    }
    own = {"PATH", "HOME", "LANG", "TMPDIR", "PWD", "SHLVL", "_", "OLDPWD", "CORERL_EPISODE", "SEARCH"}
    assert {name for name in lines if not name.endswith(("URL", "API_KEY"))} <= own
    assert lines["SEARCH"] == "given on purpose" and lines["HOME"] == lines["PWD"]


def test_a_program_that_gets_a_proxy_reaches_the_endpoint_without_it(play, monkeypatch):
    monkeypatch.setenv("SITE_PROXY", "http://proxy.example:3128")
    result = play("env", environment={"HTTPS_PROXY": "${env:SITE_PROXY}", "NO_PROXY": "files.example"})
    lines = dict(line.split("=", 1) for line in result.artifacts["output"].splitlines() if "=" in line)
    assert lines["HTTPS_PROXY"] == "http://proxy.example:3128"
    assert lines["NO_PROXY"] == lines["no_proxy"] == "files.example,localhost,127.0.0.1,::1"


def test_a_check_sees_neither_keys_nor_the_endpoint(play):
    result = play("true", check_command="env")
    assert "key-of-the-episode" not in result.artifacts["check_output"]


@pytest.mark.parametrize(("check", "reward"), [("test -f made", 1.0), ("test -f other", 0.0), ("sleep 30", 0.0)])
def test_the_exit_code_of_a_check_is_the_reward(play, check, reward):
    result = play("touch made", check_command=check, check_timeout=1.0)
    assert result.reward == reward
    assert result.metrics["harness/check_timeout/ratio"] == (float("sleep" in check), 1)


def test_the_last_line_of_a_check_is_the_reward(play):
    assert play("true", check_command="echo tests: 3; echo 0.75", check_prints_reward=True).reward == 0.75
    with pytest.raises(Exception, match=r"last line of the check should be a finite number, found 'nan'"):
        play("true", check_command="echo nan", check_prints_reward=True)


def test_files_of_the_check_replace_what_the_agent_left_in_their_place(play, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    result = play(
        f"ln -s {outside} tests; ln -s {outside}/x judge.sh",
        check_command="sh tests/run.sh && ./judge.sh",
        info={"check_files": {"tests/run.sh": "exit 0", "judge.sh": "#!/bin/sh\nexit 0"}},
    )
    assert result.reward == 1.0 and list(outside.iterdir()) == []


def test_expected_files_count_by_share_and_links_do_not_count(play, tmp_path):
    (tmp_path / "secret").write_text("right")
    result = play(
        f"printf right > a; ln -s {tmp_path}/secret b; mkfifo c; mkdir d; ln -s /dev/zero e",
        info={"expected_files": dict.fromkeys("abcde", "right")},
    )
    assert result.reward == 0.2


def test_causes_of_an_end_are_metrics(play):
    assert play("exit 3").metrics["harness/exit_code/ratio"] == (1.0, 1)
    late = play("echo begun; sleep 30", timeout=0.5, check_command="true")
    assert late.metrics["harness/timeout/ratio"] == (1.0, 1) and late.metrics["harness/exit_code/ratio"] == (0.0, 1)
    assert late.reward == 1.0 and late.artifacts["output"] == "begun\n"
    big = play([*PYTHON, "-c", "x = [bytearray(8 << 20) for _ in range(99)]"], memory_gb=0.25)
    assert "MemoryError" in big.artifacts["output"] and big.metrics["harness/exit_code/ratio"] == (1.0, 1)


def test_a_task_has_a_deadline_of_its_own(play):
    assert play("sleep 30", info={"agent_seconds": 0.5}).metrics["harness/timeout/ratio"] == (1.0, 1)


def test_a_folder_is_kept_on_request(play, tmp_path):
    play("echo kept > note", keep_folders=True)
    [folder] = tmp_path.iterdir()
    assert (folder / "work" / "note").read_text() == "kept\n" and (folder.stat().st_mode & 0o777) == 0o700


def test_a_folder_that_resists_is_removed(play, tmp_path):
    play("mkdir -p a/b/c; touch a/b/c/d; chmod 0 a/b; chmod 0 .; ln -s / root")
    assert list(tmp_path.iterdir()) == []


def test_temporary_files_end_with_the_episode(play):
    result = play("mktemp")
    assert not os.path.exists(result.artifacts["output"].strip())  # noqa: PTH110


@pytest.mark.parametrize("path", ["../out", "/etc/corerl", "a/../../out", "", "a\0b"])
def test_paths_out_of_the_folder_are_refused(play, tmp_path, path):
    with pytest.raises(DataError, match="no path within the folder"):
        play("true", info={"files": {path: "x"}})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("files", ["{", 3, {"a": 1}, {"a": "x", "a/b": "y"}])
def test_files_of_another_shape_are_refused(play, files):
    with pytest.raises(DataError):
        play("true", info={"files": files})


def test_files_come_as_json_and_as_lists_too(play):
    assert play("cat a", info={"files": '{"a": "json"}'}).artifacts["output"] == "json"
    assert play("cat a", info={"files": [{"path": "a", "text": "list"}]}).artifacts["output"] == "list"


def test_a_missing_program_ends_the_run(play):
    with pytest.raises(RunError, match=r"not started.*nowhere"):
        play(["/nowhere/agent"])


def test_two_episodes_at_once_wait_for_a_place(model, tmp_path):
    agent = HarnessAgent(
        AgentContext(SimpleNamespace(), None),
        options=HarnessOptions("sleep 0.4", max_commands=1, folders=str(tmp_path), timeout=20.0),
    )

    async def both():
        await asyncio.gather(*(agent.run(Task([], "", ""), model) for _ in range(2)))

    began = time.monotonic()
    asyncio.run(both())
    assert time.monotonic() - began >= 0.8


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may change its user")
def test_another_user_plays_in_its_folder(play):
    with tempfile.TemporaryDirectory(dir="/tmp") as folders:
        os.chmod(folders, 0o711)  # noqa: PTH101
        line = "id -u; touch made && mktemp > /dev/null && echo wrote"
        result = play(line, user=54322, check_command="test -f made", folders=folders)
    assert result.artifacts["output"] == "54322\nwrote\n" and result.reward == 1.0
