"""Plugins import the public modules of docs/compatibility.md, and of other plugins what that page lists."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = {
    "corerl_check",
    "corerl_engines",
    "corerl_gateway",
    "corerl_simulate",
    "corerl_supervised",
    "corerl_testing",
    "corerl_tinker",
    "corerl_tools",
    "corerl_torch",
    "corerl_verl",
}
"""distributions of the core's own: they use its inside, and plugins may use them"""


def public(heading: str = "Public modules") -> set[str]:
    """The modules in the table below a heading of the page."""
    page = (ROOT / "docs" / "compatibility.md").read_text()
    table = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(corerl[\w.]*)`", table, re.MULTILINE))


def imports(source: str) -> set[str]:
    """What a file imports, inside functions too: of ``from a.b import c``, a.b."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def files() -> Iterator[tuple[str, Path]]:
    """(plugin, file) of the plugins that are not the core's own."""
    for path in ROOT.glob("plugins/*/src/*/**/*.py"):
        plugin = path.relative_to(ROOT / "plugins").parts[0]
        if plugin not in SHARED:
            yield plugin, path


def protocols(path: Path) -> list[str]:
    """The Protocols of a file that ``isinstance`` takes."""
    return re.findall(r"^@runtime_checkable\nclass (\w+)", path.read_text(), re.MULTILINE)


def is_public(module: str, known: set[str]) -> bool:
    return module in known or module.startswith("corerl.contracts.")


def test_there_are_at_most_fifteen_public_modules() -> None:
    assert 5 <= len(public()) <= 15


def test_plugins_import_public_modules_alone() -> None:
    known = public()
    inside = {
        f"{path.relative_to(ROOT)}: {module}"
        for _, path in files()
        for module in imports(path.read_text())
        if module.split(".")[0] == "corerl" and not is_public(module, known)
    }
    assert inside == set()


def test_every_public_module_is_used() -> None:
    used = {module for _, path in files() for module in imports(path.read_text())}
    unused = {module for module in public() if module not in used}
    assert unused <= {"corerl.contracts"}


def test_plugins_import_the_public_modules_of_others_alone() -> None:
    crossing = {
        module
        for plugin, path in files()
        for module in imports(path.read_text())
        if (top := module.split(".")[0]).startswith("corerl_")
        and not top.startswith(plugin)
        and top not in SHARED | {"corerl_engine"}
    }
    assert crossing == public("Public modules of plugins")


def test_the_inside_is_told_from_the_public() -> None:
    found = imports(
        "from corerl.trainer.loop import train\nimport corerl.errors\ndef f():\n    from corerl import option\n"
    )
    assert found == {"corerl.trainer.loop", "corerl.errors", "corerl"}
    assert not is_public("corerl.trainer.loop", public()) and is_public("corerl.contracts.losses", public())


def test_every_optional_method_has_a_protocol_that_the_code_uses_and_the_page_names() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    listed = re.findall(
        r"^\| `(\w+\.\w+)`", page.partition("## Optional methods")[2].partition("\n## ")[0], re.MULTILINE
    )
    declared = [
        f"{path.stem}.{name}"
        for path in sorted((ROOT / "corerl" / "contracts").glob("*.py"))
        for name in protocols(path)
    ]
    for plugin, file in (("corerl_check", "*.py"), ("corerl_envs", "contract.py")):
        found = sorted((ROOT / "plugins" / plugin / "src" / plugin).glob(file))
        declared += [f"{plugin}.{name}" for path in found for name in protocols(path)]
    assert listed == sorted(declared)
    code = "".join(path.read_text() for folder in ("corerl", "plugins") for path in (ROOT / folder).rglob("*.py"))
    unused = [name for name in declared if not re.search(rf"isinstance\(.*\b{name.partition('.')[2]}\b", code)]
    assert unused == []
