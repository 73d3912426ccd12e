"""The rooms of the core stand on six floors. A room imports its own floor and lower ones, never in a circle.

A room is a file or a folder of ``corerl/``. Imports inside functions and for types count.
"""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import corerl

ROOT = Path(corerl.__file__).parent

FLOORS = (
    ("errors", "contracts", "files", "foreign", "secrets", "seeding", "terminal", "threads"),
    ("hookspecs", "config", "registry", "plugins", "builtins"),
    ("data", "models", "batch", "objective", "checkpoint"),
    ("rollout", "runtime", "telemetry"),
    ("trainer",),
    ("cli", "__main__"),
)


@cache
def modules() -> dict[str, Path]:
    """Every module of the core."""
    named = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


def imported(path: Path) -> set[str]:
    """The modules of the core that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} imports relatively"
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                found.add(inner if inner in modules() else node.module)
    return found & set(modules())


@cache
def graph() -> dict[str, set[str]]:
    """Module -> those that it imports; the public names of ``corerl`` itself are left out."""
    return {name: imported(path) - {name, "corerl"} for name, path in modules().items() if name != "corerl"}


def room(module: str) -> str:
    return module.split(".")[1]


def cycle(arrows: dict[str, set[str]]) -> list[str]:
    """Names that import each other in a circle; [] if none do."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def upward(arrows: dict[str, set[str]]) -> list[str]:
    """Arrows to a higher floor."""
    height = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
    return [
        f"{name} -> {other}"
        for name, others in arrows.items()
        for other in others
        if height[room(other)] > height[room(name)]
    ]


def test_every_room_has_a_floor() -> None:
    assert sorted(room for rooms in FLOORS for room in rooms) == sorted({room(module) for module in graph()})


def test_no_arrow_leads_up() -> None:
    assert upward(graph()) == []


def test_no_rooms_import_each_other_in_a_circle() -> None:
    rooms: dict[str, set[str]] = {}
    for module, others in graph().items():
        rooms.setdefault(room(module), set()).update({room(other) for other in others} - {room(module)})
    assert cycle(rooms) == []
    assert cycle(graph()) == []


def test_contracts_import_nothing_but_errors() -> None:
    above = {
        f"{module} -> {other}"
        for module, others in graph().items()
        for other in others
        if room(module) == "contracts" and room(other) not in ("contracts", "errors")
    }
    assert above == set()


@pytest.mark.parametrize(
    ("arrow", "found"),
    [
        (("corerl.data.files", "corerl.trainer.loop"), ["corerl.data.files -> corerl.trainer.loop"]),
        (("corerl.trainer.loop", "corerl.data.files"), []),
    ],
)
def test_an_arrow_up_is_found(arrow: tuple[str, str], found: list[str]) -> None:
    assert upward({arrow[0]: {arrow[1]}}) == found


def test_imports_of_every_form_are_found(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        "import corerl.errors\nfrom corerl.data import files as f\n"
        "def g():\n    from corerl.trainer.loop import train\n"
        "if TYPE_CHECKING:\n    from corerl import plugins\n"
    )
    assert imported(file) == {"corerl.errors", "corerl.data.files", "corerl.trainer.loop", "corerl.plugins"}
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != []
