"""The modules of each package, and the tests for a mutant of a module."""

import re
from pathlib import Path

PACKAGES = {
    "objective": ["corerl/objective/**/*.py"],
    "batch": ["corerl/batch/**/*.py"],
    "trainer": ["corerl/trainer/**/*.py"],
    "checkpoint": ["corerl/checkpoint/**/*.py"],
    "engines": ["plugins/corerl_engines/src/corerl_engines/**/*.py"],
    "estimators": ["plugins/corerl_grpo/src/corerl_grpo/advantages/*.py", "plugins/corerl_ppo/src/corerl_ppo/*gae.py"],
    "losses": [
        "plugins/corerl_grpo/src/corerl_grpo/kl/*.py",
        "plugins/corerl_grpo/src/corerl_grpo/losses/*.py",
        "plugins/corerl_ppo/src/corerl_ppo/kl_control.py",
        "plugins/corerl_ppo/src/corerl_ppo/value_loss.py",
    ],
}

NEIGHBOURS = {
    "corerl/checkpoint/export": ("tests/integration/test_export.py", "tests/integration/test_untrusted.py"),
    "plugins/corerl_engines/src/corerl_engines": ("plugins/corerl_vllm/tests/test_process.py",),
    "plugins/corerl_grpo": ("tests/integration/test_algorithm_pages.py",),
    "plugins/corerl_ppo": ("tests/integration/test_algorithm_pages.py",),
}
"""beginning of a module's path -> tests elsewhere that are near it"""


def modules(root: Path, package: str) -> list[Path]:
    """The files of a package, relative to the root."""
    return sorted(path.relative_to(root) for pattern in PACKAGES[package] for path in root.glob(pattern))


def tests(root: Path, module: Path) -> list[Path]:
    """The test files for a mutant of a module, the nearest first.

    The order: files with the module's name, with its folder's name, files of the mirroring folder (or of the plugin)
    that import the module, the rest of that folder, files of other folders that import the module.
    """
    folder = _folder(root, module)
    inside = sorted(folder.rglob("test_*.py"))
    elsewhere = [] if "plugins" in module.parts else sorted((root / "tests").rglob("test_*.py"))
    stem, name = module.stem, _name(module)
    named = [path for each in (stem, module.parent.name) for path in inside if _is_named(path, each)]
    importing = [path for path in (*inside, *elsewhere) if _imports(path, name)]
    near = [root / path for start, paths in NEIGHBOURS.items() if str(module).startswith(start) for path in paths]
    found = dict.fromkeys([*named, *[path for path in importing if path in inside], *inside, *near, *importing])
    return [path.relative_to(root) for path in found if path.exists()]


def _folder(root: Path, module: Path) -> Path:
    """The innermost folder of tests that mirrors the module's."""
    parts = module.parts
    if parts[0] == "plugins":
        return root / parts[0] / parts[1] / "tests"
    folders = [root.joinpath("tests", *parts[1:end]) for end in range(len(parts) - 1, 0, -1)]
    return next(folder for folder in folders if folder.is_dir())


def _is_named(test: Path, name: str) -> bool:
    return re.fullmatch(rf"test_{name}(_\w+)?", test.stem) is not None


def _name(module: Path) -> str:
    """The module's name in an import statement."""
    parts = module.with_suffix("").parts
    return ".".join(parts[3:] if parts[0] == "plugins" else parts)


def _imports(test: Path, name: str) -> bool:
    package, _, stem = name.rpartition(".")
    text = test.read_text()
    return (
        re.search(rf"\b(from|import) {re.escape(name)}\b|from {re.escape(package)} import .*\b{stem}\b", text)
        is not None
    )
