import pytest

from corerl.errors import RequestError
from corerl.files import atomic_path, reading, unused


def test_a_file_appears_whole(tmp_path):
    with atomic_path(tmp_path / "deep" / "a.txt") as temporary:
        temporary.write_text("done")
        assert not (tmp_path / "deep" / "a.txt").exists()
    assert (tmp_path / "deep" / "a.txt").read_text() == "done"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, error):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(error), atomic_path(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        raise error
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.txt", "old")]


def test_a_folder_replaces_the_old_one(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "stale").touch()
    with atomic_path(tmp_path / "model", folder=True) as temporary:
        (temporary / "new").touch()
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["new"]


def test_what_a_damaged_file_raises_is_told_of_it_and_an_error_of_another_file_is_not(tmp_path):
    said = "checkpoint is damaged, or not of CoreRL: ValueError: half"
    with pytest.raises(RequestError, match=said), reading(tmp_path / "checkpoint"):
        raise ValueError("half")
    with pytest.raises(RequestError, match="FileNotFoundError"), reading(tmp_path / "checkpoint"):
        (tmp_path / "checkpoint" / "state.json").read_text()
    with pytest.raises(FileNotFoundError), reading(tmp_path / "checkpoint"):
        (tmp_path / "elsewhere").read_text()


def test_a_taken_name_gets_a_number(tmp_path):
    for expected in ("a", "a-2", "a-3"):
        assert unused(tmp_path / "a") == tmp_path / expected
        (tmp_path / expected).mkdir()
