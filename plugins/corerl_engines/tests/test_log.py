from pathlib import Path

import pytest

from corerl_engines.log import EngineLog


@pytest.fixture
def log(tmp_path: Path) -> EngineLog:
    return EngineLog(tmp_path / "engine.log", tmp_path / "kept", "acme")


def write(log: EngineLog, *lines: str) -> None:
    log.file.write("".join(f"{line}\n" for line in lines).encode())
    log.file.flush()


@pytest.mark.parametrize(
    "consequence",
    [
        "RuntimeError: Engine core initialization failed. See above.",
        "ERROR 11-21 16:18:27 [async_llm.py:1] EngineDeadError",
        "acme.Error: EngineCore encountered an issue.",
        "RuntimeError: it failed, see root cause above",
        "RuntimeError: Worker failed with error 'no room'",
        "RuntimeError: the engine's core is dead",
    ],
)
def test_the_last_error_that_follows_from_no_other_is_quoted(log: EngineLog, consequence: str) -> None:
    write(log, "KeyError: first", "ValueError: no room", consequence, "goodbye")
    last = log.last_lines()
    assert last.startswith("the last error in its log: ValueError: no room; the last lines of its log (")
    assert last.endswith(f"\n  {consequence}\n  goodbye")


def test_a_log_without_an_error_is_quoted_alone(log: EngineLog) -> None:
    assert log.last_lines() == "it wrote no log"
    write(log, "hello")
    assert log.last_lines() == f"the last lines of its log ({log.kept_path()}):\n  hello"


def test_a_copy_is_complete_if_an_error_named_it_and_else_there_is_none(log: EngineLog, tmp_path: Path) -> None:
    write(log, "early")
    copy = Path(log.kept_path())
    write(log, "late")
    log.close()
    log.close()
    assert copy.read_text() == "early\nlate\n"
    unnamed = EngineLog(tmp_path / "other.log", tmp_path / "none", "acme")
    unnamed.close()
    assert not (tmp_path / "none").exists()


def test_a_log_is_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "theirs").touch()
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    for name in ("theirs", "link"):
        with pytest.raises(FileExistsError):
            EngineLog(tmp_path / name, tmp_path, "acme")
