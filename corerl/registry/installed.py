"""Entry points of installed plugins, from their files: the import of importlib.metadata takes a fifth of the time of
``corerl --help``."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

GROUP = "corerl"

_SECTION = re.compile(rf"^\[{GROUP}\][ \t]*$(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL)
_POINT = re.compile(r"^[ \t]*([^=#;\s]+)[ \t]*=[ \t]*(\S+)", re.MULTILINE)


class PluginPoint(NamedTuple):
    """An entry point ``name = value`` with its distribution."""

    name: str
    value: str
    distribution: str
    version: str


def plugin_points() -> Iterator[PluginPoint]:
    """Entry points in the folders of ``sys.path``; of distributions with the same name, those of the first."""
    seen: set[str] = set()
    for folder in map(Path, dict.fromkeys(sys.path)):
        names = sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
        found = {name: _distribution(name) for name in names if name.endswith((".dist-info", ".egg-info"))}
        for name in found:
            file = folder / name / "entry_points.txt"
            if found[name] not in seen and file.is_file() and (section := _SECTION.search(file.read_text("utf-8"))):
                distribution = _named(folder / name)
                yield from (PluginPoint(point, value, *distribution) for point, value in _POINT.findall(section[1]))
        seen.update(found.values())


def normal(distribution: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _distribution(info: str) -> str:
    """The normal name of a distribution, by its folder: ``acme_x-1.0.dist-info``, ``acme_x.egg-info``."""
    return normal(info.rpartition(".")[0].partition("-")[0])


def _named(info: Path) -> tuple[str, str]:
    """Name and version of a distribution."""
    file = info / ("METADATA" if info.suffix == ".dist-info" else "PKG-INFO")
    text = file.read_text("utf-8") if file.is_file() else ""
    name, version = (re.search(rf"^{key}:[ \t]*(\S+)", text, re.MULTILINE) for key in ("Name", "Version"))
    return name[1] if name else info.name.partition("-")[0], version[1] if version else ""
