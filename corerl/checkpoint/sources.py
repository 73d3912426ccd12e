"""The files that code and YAML name in turn: imports outside of installed packages, and values of a YAML file."""

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from corerl.config.interpolations import texts_of

MOST = 1_000
"""files that are followed from one"""


def files_of(text: str) -> list[Path]:
    """The file that a text names, perhaps with one of its objects, and those that it names in turn.

    A folder stands for the weights in it, ``package.module:attribute`` for the files of the module.
    """
    files = _direct(text)
    found = {file.resolve() for file in files}
    for file in files:  # which grows
        for named in _named(file) if len(files) < MOST else ():
            if named.resolve() not in found:
                found.add(named.resolve())
                files.append(named)
    return files


def _direct(text: str) -> list[Path]:
    with suppress(OSError, ValueError, RuntimeError):  # no possible path, or nobody's home
        path = Path(re.sub(r"(\.py):[^:/]*$", r"\1", text)).expanduser()
        if path.is_file():
            return [path] if "/" in text or "." in text else []
        if re.fullmatch(r"[\w.]+:[\w.]+", text):
            return [file for root in _roots() for file in _module(root, text.partition(":")[0])]
        return sorted(path.glob("*.safetensors")) if text else []
    return []


def _named(file: Path) -> Iterator[Path]:
    """Existing files that a file names; a file that cannot be read is an error of its reader."""
    with suppress(Exception):
        if file.suffix == ".py":
            tree = ast.parse(file.read_bytes())
            yield from (found for node in ast.walk(tree) for found in _imported(node, file.parent))
        elif file.suffix in (".yaml", ".yml"):
            import yaml  # type: ignore[import-untyped]

            for _, text in texts_of(yaml.safe_load(file.read_text())):
                yield from _direct(text)


def _imported(node: Any, folder: Path) -> Iterator[Path]:
    """The files of an import in a file of ``folder``, if they are no part of an installation."""
    if isinstance(node, ast.Import):
        names, roots = [each.name for each in node.names], [folder, *_roots()]
    elif isinstance(node, ast.ImportFrom):
        names = [f"{node.module or ''}.{each.name}".strip(".") for each in node.names]
        roots = [folder, *folder.parents][node.level - 1 : node.level] if node.level else [folder, *_roots()]
    else:
        return
    for name in names:
        if not name.startswith("corerl"):  # whose versions a checkpoint has
            yield from (file for root in roots for file in _module(root, name))


def _module(root: Path, name: str) -> Iterator[Path]:
    """The files of the packages and of the module of a dotted name, whose last part may be an object."""
    for part in name.split("."):
        yield from filter(Path.is_file, (root / f"{part}.py", root / part / "__init__.py"))
        root = root / part


def _roots() -> list[Path]:
    """The folders of ``sys.path`` that belong to no installation."""
    installed = (sys.prefix, sys.base_prefix, sys.exec_prefix)
    return [Path(each) for each in dict.fromkeys(sys.path) if each and not each.startswith(installed)]
