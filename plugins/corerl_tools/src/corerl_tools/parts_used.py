"""``plugins.json`` of a run: every part used, its distribution, version and options."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from corerl.files import atomic_path
from corerl.registry import Selected
from corerl.registry.parts import Parts


def write(parts: Parts, folder: Path) -> None:
    """Write the file into the folder of a run."""
    with atomic_path(folder / "plugins.json") as temporary:
        used = [_description(part, selected) for part, selected in parts.used()]
        plain = json.loads(json.dumps(used, default=repr), parse_constant=str)  # JSON has no Infinity
        temporary.write_text(json.dumps(plain, indent=2) + "\n")


def _description(part: str, selected: Selected[Any]) -> dict[str, Any]:
    entry = selected.entry
    return {
        "part": part,
        "kind": entry.kind,
        "name": entry.name,
        "distribution": entry.owner.distribution,
        "version": entry.owner.version,
        "options": asdict(selected.options) if selected.options is not None else {},
    }
