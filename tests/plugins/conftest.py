"""Distributions made of two files on ``sys.path``: enough for ``importlib.metadata`` to find them."""

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from corerl.plugins import DISABLE_VARIABLE, forget_plugins

MakeDistribution = Callable[..., Path]


@pytest.fixture
def core_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever is installed beside the core is disabled, and nothing that is loaded so is left to other tests."""
    installed = [point.dist.name for point in entry_points(group="corerl") if point.dist]
    monkeypatch.setenv(DISABLE_VARIABLE, ",".join(installed))
    forget_plugins()
    yield
    forget_plugins()


@pytest.fixture
def make_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, core_alone: None) -> Iterator[MakeDistribution]:
    """``make_distribution("acme", "1.0", code)``: an installed distribution whose hook module holds ``code``."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    before = set(sys.modules)

    def make(name: str, version: str, code: str, *, entry_point: str | None = None) -> Path:
        module = name.replace("-", "_") + "_plugin"
        (site / f"{module}.py").write_text(code)
        metadata = site / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (metadata / "entry_points.txt").write_text(f"[corerl]\n{entry_point or name} = {module}\n")
        return site

    yield make
    for name in set(sys.modules) - before:
        if "_plugin" in name or name.startswith("corerl_file_"):
            del sys.modules[name]
