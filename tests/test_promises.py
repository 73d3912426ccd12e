"""Tables of promises are complete: their tests exist, and every deadline that can be set is listed."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from corerl.contracts.config import TrainConfig

ROOT = Path(__file__).parents[1]
TESTS = {path.name for path in (*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("plugins/*/tests/test_*.py"))}
DEADLINES = (ROOT / "docs" / "resuming.md").read_text().partition("\n## Deadlines\n")[2]


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/faults.md"])
def test_every_test_that_a_page_names_is_there(page: str) -> None:
    named = set(re.findall(r"`((?:\w+/)*test_\w+\.py)`", (ROOT / page).read_text()))
    assert len(named) > 10
    assert [name for name in sorted(named) if not ((ROOT / name).is_file() if "/" in name else name in TESTS)] == []


def timeouts(kind: Any, prefix: str) -> list[str]:
    """Dotted keys of a dataclass that end in ``timeout``, sections included."""
    found = []
    for field in dataclasses.fields(kind):
        section: Any = field.default_factory
        if isinstance(section, type) and dataclasses.is_dataclass(section):
            found += timeouts(section, f"{prefix}{field.name}.")
        elif field.name.endswith("timeout"):
            found.append(f"{prefix}{field.name}")
    return found


@pytest.mark.parametrize(
    ("options", "prefix"),
    [
        (None, ""),
        ("corerl_engines", "rollout.options."),
        ("corerl_ray", "runtime.options."),
        ("corerl_fsdp", "actor.strategy."),
        ("corerl_megatron", "actor.strategy."),
    ],
)
def test_every_deadline_that_can_be_set_is_in_the_table(options: str | None, prefix: str) -> None:
    kinds: list[type] = [TrainConfig]
    if options is not None:
        module = pytest.importorskip(f"{options}.options")
        every = [
            kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__
        ]
        kinds = [kind for kind in every if dataclasses.is_dataclass(kind)]
    keys = [key for kind in kinds for key in timeouts(kind, prefix)]
    assert keys
    assert [key for key in keys if f"`{key}`" not in DEADLINES] == []
