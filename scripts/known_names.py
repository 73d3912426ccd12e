"""Write corerl/registry/known_names.json: kind → name → the CoreRL distribution that registers it.

The table lets an error message say what to install. Run it after a plugin in ``plugins/`` registers another name::

    python scripts/known_names.py
"""

import json
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path

from corerl.plugins import Plugins
from corerl.registry.base import KNOWN_NAMES
from corerl.registry.installed import GROUP

ROOT = Path(__file__).resolve().parent.parent


def plugin_files() -> dict[str, str]:
    """The hook file of every plugin in ``plugins/`` → its distribution."""
    files = {}
    for pyproject in sorted(ROOT.glob("plugins/*/pyproject.toml")):
        source = pyproject.parent / "src"
        sys.path.insert(0, str(source))
        points = tomllib.loads(pyproject.read_text())["project"].get("entry-points", {}).get(GROUP, {})
        for distribution, module in points.items():
            files[str(source / (module.replace(".", "/") + ".py"))] = distribution
    return files


def plugins_of(files: Iterable[str]) -> Plugins:
    """The plugins in these files. What is installed plays no part."""
    installed = {point.dist.name for point in entry_points(group=GROUP) if point.dist}
    return Plugins(load=list(files), disable=sorted(installed))


def known_names() -> dict[str, dict[str, str]]:
    """The table, sorted.

    Raises:
        PluginError: a plugin is broken.
    """
    files = plugin_files()
    plugins = plugins_of(files)
    plugins.raise_if_broken(files)
    table: dict[str, dict[str, str]] = {}
    for record in plugins.records:
        for _, entry in record.entries:
            if record.name in files:
                table.setdefault(entry.kind, {})[entry.name] = files[record.name]
    return {kind: dict(sorted(table[kind].items())) for kind in sorted(table)}


def render() -> str:
    """The text of the file."""
    return json.dumps(known_names(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    KNOWN_NAMES.write_text(render())
