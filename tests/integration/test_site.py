"""`make docs`: the site loads nothing from other hosts, and a wrong link ends the build."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install corerl[docs]")
pytest.importorskip("material", reason="mkdocs-material is not installed: pip install corerl[docs]")

pytestmark = pytest.mark.xdist_group("site")  # one build serves most tests

ROOT = Path(__file__).parents[2]
QUIET = {"NO_MKDOCS_2_WARNING": "1"}
LOADED = re.compile(r"""<(?:script|img|iframe)[^>]*\ssrc="?(?:https?:)?//|<link[^>]*\shref="?(?:https?:)?//""")


def build(root: Path, site: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mkdocs", "build", f"--config-file={root}/mkdocs.yml", f"--site-dir={site}"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, env={**os.environ, **QUIET})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_built(site: Path) -> None:
    names = {page.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for page in ROOT.glob("docs/**/*.md")}
    built = {page.relative_to(site).as_posix() for page in site.rglob("*.html")}
    assert {name.replace("README", "index") for name in names} <= built


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    assert [page.name for page in pages if LOADED.search(page.read_text())] == []


def test_files_outside_docs_are_pages(site: Path) -> None:
    assert 'href="repository/corerl/trainer/loop.py.html"' in (site / "architecture.html").read_text()
    assert "repository/plugins/corerl_grpo/index.html" in (site / "index.html").read_text()
    assert "trainer/loop.py" in (site / "repository/corerl/trainer/loop.py.html").read_text()
    assert "minus the group" in (site / "repository/plugins/corerl_grpo/index.html").read_text()


def test_a_wrong_link_ends_the_build(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / "mkdocs.yml").write_text((ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0] + "\n")
    (tmp_path / "README.md").write_text("# Home\n\n[a file](docs/data.md) [another](scripts/step.sh)\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "data.md").write_text("# Data\n")
    (tmp_path / "docs" / "sft.md").write_text("[page](none.md) [anchor](data.md#none) [file](../corerl/none.py)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    assert {"none.md", "#none", "../corerl/none.py"} <= set(re.findall(r"'([^']+)'", done.stderr))
    assert "Aborted with 3 warnings" in done.stdout + done.stderr
