"""Write docs/verl.md: from "## Defaults that differ" on it is corerl.config.from_verl and corerl.config.verl_keys.

Run it after a key is added to one of the two::

    python scripts/verl_page.py
"""

import json
from pathlib import Path

from corerl.config.from_verl import DEFAULTS
from corerl.config.load import load
from corerl.config.schema import TrainConfig
from corerl.config.verl_keys import TABLE

PAGE = Path(__file__).resolve().parent.parent / "docs" / "verl.md"
MARK = "## Defaults that differ\n"


def render(page: str) -> str:
    """The page, with its two tables made anew."""
    config = load(TrainConfig, None, ["model.path=x"])
    lines = [page.partition(MARK)[0] + MARK, "| key | verl | CoreRL |", "|---|---|---|"]
    for key, default in DEFAULTS.items():
        own: object = config
        for part in key.split("."):
            own = getattr(own, part)
        lines.append(f"| `{key}` | {_code(default)} | {_code(own)} |")
    lines += [
        "",
        "## Keys",
        "",
        "A key that is not here has its name in CoreRL, without `actor_rollout_ref.`. `…` is the rest of a key. A",
        "wrong key is an error that names the right one, on the command line and in files.",
        "",
        "| verl, without `actor_rollout_ref.` | CoreRL | |",
        "|---|---|---|",
    ]
    for row in TABLE:
        here = ", ".join(f"`{_shown(key)}`" for key in row.here) or "none"
        lines.append(f"| `{_shown(row.verl)}` | {here} | {row.note} |")
    return "\n".join(lines) + "\n"


def _code(value: object) -> str:
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _shown(key: str) -> str:
    return key.replace("*", "…")


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
