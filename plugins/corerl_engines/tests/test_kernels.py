"""Kernels that torch has compiled are kept where nobody else can write."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from corerl_engines import kernels


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the kernels; it is not there yet."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv(kernels.VARIABLE, raising=False)
    return tmp_path / f"torchinductor_uid_{os.getuid()}"


def test_engines_share_a_folder_of_their_user_alone(folder: Path) -> None:
    assert kernels.kept() == kernels.kept() == {kernels.VARIABLE: str(folder)}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_the_user_names_is_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.VARIABLE, "/somewhere")
    assert kernels.kept() == {kernels.VARIABLE: "/somewhere"}
    assert not folder.exists()


def writable(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def link(folder: Path) -> None:
    folder.symlink_to(folder.parent)


def of_another(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    try:
        os.chown(folder, 65534, 65534)
    except PermissionError:
        pytest.skip("only root gives folders away")


@pytest.mark.parametrize("prepare", [writable, link, of_another])
def test_a_folder_that_somebody_else_may_have_filled_is_not_used(folder: Path, prepare: Callable[[Path], None]) -> None:
    prepare(folder)
    assert kernels.kept() == {}
