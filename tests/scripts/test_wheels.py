"""scripts/wheels.py: what the wheel of a distribution must hold. Nothing is built here."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from scripts import wheels


@pytest.mark.parametrize("project", wheels.projects(), ids=lambda path: path.name)
def test_a_distribution_has_its_licence_and_its_readme(project: Path) -> None:
    assert (project / "README.md").is_file()
    assert (project / "LICENSE").read_text() == (wheels.ROOT / "LICENSE").read_text()


def test_a_missing_part_is_a_defect_of_the_core_too_whose_version_is_in_its_code(tmp_path: Path) -> None:
    names = {"corerl/py.typed", "corerl-9.9.dist-info/licenses/LICENSE"}
    names |= {str(path.relative_to(wheels.ROOT)) for path in (wheels.ROOT / "corerl").rglob("*.py")}
    with zipfile.ZipFile(tmp_path / "corerl-9.9-py3-none-any.whl", "w") as wheel:
        for name in sorted(names - {"corerl/seeding.py"}):
            wheel.writestr(name, "")
        wheel.writestr("corerl-9.9.dist-info/METADATA", "License-Expression: Apache-2.0\n")
    with tarfile.open(tmp_path / "corerl-9.9.tar.gz", "w") as sdist:
        for name in ("LICENSE", "README.md"):
            sdist.addfile(tarfile.TarInfo(f"corerl-9.9/{name}"), io.BytesIO())
    found = wheels.defects(wheels.ROOT, tmp_path)
    assert found == [
        "corerl-9.9: the wheel has no corerl/seeding.py",
        "corerl-9.9: the sdist has no corerl-9.9/pyproject.toml",
    ]
