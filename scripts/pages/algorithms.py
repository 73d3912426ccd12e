"""Write the made part of each page of docs/algorithms/: formula and source, options, metrics.

The part stands between ``<!-- of: KIND NAME; KIND NAME -->`` and ``<!-- end -->``. Formulas are those of the docstrings
of the modules that the names are registered with. ``module NAME`` adds a module, ``keys SECTION`` keys of the config.
Run it after one of them has changed::

    python -m scripts.pages.algorithms
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from corerl.contracts.config import TrainConfig
from corerl.contracts.facts import LossFacts
from corerl.registry import Entry
from scripts.known_names import ROOT
from scripts.pages.markdown import from_docstring, options, table
from scripts.pages.reference import plugins

FOLDER = ROOT / "docs" / "algorithms"
NONE = "None.\n\n"
BLOCK = re.compile(r"(<!-- of: (.*) -->\n).*?(<!-- end -->\n)", flags=re.DOTALL)


@dataclass
class Subjects:
    """What a block is of, in its order."""

    modules: dict[str, list[str]] = field(default_factory=dict)
    """module → the parts that it defines, in words"""
    entries: list[Entry[object]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


def render(page: str) -> str:
    """The page, with its block made anew."""
    return BLOCK.sub(lambda match: match[1] + made(subjects(match[2])) + match[3], page)


def subjects(words: str) -> Subjects:
    """The subjects that the first line of a block names.

    Raises:
        UnknownNameError: nobody registers a name.
    """
    found, registries = Subjects(), {registry.kind: registry for _, registry in plugins().registries}
    for each in words.split("; "):
        kind, name = each.rsplit(" ", 1)
        if kind == "module":
            found.modules[name] = []
        elif kind == "keys":
            found.keys.append(name)
        else:
            entry = registries[kind].get(name)
            found.entries.append(entry)
            parts = found.modules.setdefault(str(entry.target).partition(":")[0], [])
            parts.append(f"`{name}`" if any(part.startswith(kind) for part in parts) else f"{kind} `{name}`")
    return found


def made(of: Subjects) -> str:
    """The text of a block."""
    text = "\n## Formula\n\n"
    for name, parts in of.modules.items():
        title, body = document(name)
        if len(of.modules) > 1:
            heading = ", ".join(parts) or title
            text += f"### {heading[0].upper()}{heading[1:]}\n\n"
        text += f"{body}\n"
    return f"{text}## Options\n\n{''.join(settings(of)) or NONE}"


def document(module: str) -> tuple[str, str]:
    """The first line of a module's docstring, and the rest as Markdown with a link to the file."""
    loaded = importlib.import_module(module)
    title, _, rest = (inspect.getdoc(loaded) or "").partition("\n\n")
    path = Path(inspect.getfile(loaded)).relative_to(ROOT)
    return title.rstrip("."), f"{from_docstring(rest)}\n[`{path.name}`](../../{path})\n"


def settings(of: Subjects) -> Iterator[str]:
    """Tables of options and metrics."""
    for entry in of.entries:
        if declared := entry.load_options():
            rows = [(option, default, meaning) for option, _, default, meaning in options(declared)]
            yield f"Of {entry.kind} `{entry.name}`:\n\n{table(('option', 'default', 'meaning'), rows)}\n"
        if isinstance(entry.facts, LossFacts) and entry.facts.metrics:
            metrics = [(f"`{metric.name}`", metric.unit, metric.definition) for metric in entry.facts.metrics]
            yield f"Metrics of {entry.kind} `{entry.name}`:\n\n{table(('metric', 'unit', 'definition'), metrics)}\n"
    for section in of.keys:
        keys = [row for row in options(TrainConfig) if row[0].startswith(f"`{section}.")]
        yield f"Keys of the config:\n\n{table(('key', 'type', 'default', 'meaning'), keys)}\n"


def pages() -> list[Path]:
    """The pages with a block."""
    return [path for path in sorted(FOLDER.glob("*.md")) if BLOCK.search(path.read_text())]


if __name__ == "__main__":
    for path in pages():
        path.write_text(render(path.read_text()))
