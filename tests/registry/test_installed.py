"""Entry points that the core reads are those of importlib.metadata."""

import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from corerl.registry.installed import PluginPoint, plugin_points


def test_the_plugins_of_this_environment_are_those_of_importlib_metadata() -> None:
    expected = [
        (point.name, point.value, point.dist.name, point.dist.version)
        for point in entry_points(group="corerl")
        if point.dist
    ]
    assert sorted(plugin_points()) == sorted(expected)


def test_the_first_of_two_versions_counts_and_other_groups_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, version, points in (
        (
            "first",
            "2.0",
            "[console_scripts]\nx = y\n\n[corerl]\nacme-one = acme.one [extra]\n# no = no\n[other]\na = b\n",
        ),
        ("second", "1.0", "[corerl]\nacme-one = acme.old\n"),
    ):
        info = tmp_path / folder / f"acme_one-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acme-one\nVersion: {version}\n\nName: a text\n")
        (info / "entry_points.txt").write_text(points)
    without = tmp_path / "zeroth" / "other-1.dist-info"
    without.mkdir(parents=True)
    paths = [str(tmp_path / name) for name in ("missing", "zeroth", "first", "second")]
    monkeypatch.setattr(sys, "path", [*paths, *paths])
    assert list(plugin_points()) == [PluginPoint("acme-one", "acme.one", "acme-one", "2.0")]
    (tmp_path / "zeroth" / "acme.one-3.dist-info").mkdir()
    assert list(plugin_points()) == []  # the installed version has no hooks


def test_a_source_folder_that_is_installed_is_one_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, name, file in (
        ("site", "acme_one-1.0.dist-info", "METADATA"),
        ("src", "acme_one.egg-info", "PKG-INFO"),
    ):
        info = tmp_path / folder / name
        info.mkdir(parents=True)
        (info / file).write_text("Metadata-Version: 2.1\nName: acme-one\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[corerl]\nacme-one = acme.one\n")
    for order in (("site", "src"), ("src", "site"), ("src",)):
        monkeypatch.setattr(sys, "path", [str(tmp_path / name) for name in order])
        assert list(plugin_points()) == [PluginPoint("acme-one", "acme.one", "acme-one", "1.0")]
