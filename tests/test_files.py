import pytest

from corerl.files import atomic_path


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
