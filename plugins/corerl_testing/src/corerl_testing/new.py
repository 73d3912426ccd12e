"""``corerl new``: a new plugin from a template.

The templates are the files of ``templates``: those of ``common`` and those of the plugin's kind, without the suffix
``.tmpl``, with ``$placeholders`` filled in, and ``src/package`` under the import name.
"""

import importlib.util
import keyword
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from string import Template

import click

from corerl import __version__
from corerl.errors import RequestError
from corerl.files import atomic_path, require_writable
from corerl.plugins import load_plugins
from corerl.registry import Registry
from corerl.registry.base import known_names
from corerl.terminal import echo

TEMPLATES = Path(__file__).parent / "templates"

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Kind:
    """The result of a template.

    Attributes:
        words: a name that ends with one of these words selects this kind.
        registry: field of :class:`corerl.registry.Registries`.
        module: the module with the implementation.
        requires: imported packages besides CoreRL's core; distributions of CoreRL without a version range.
    """

    words: tuple[str, ...]
    registry: str
    module: str
    requires: tuple[str, ...] = ()


KINDS = {
    "reward": Kind(("reward", "rewards", "scorer"), "scorers", "scorer"),
    "loss": Kind(("loss",), "policy_losses", "loss", ("torch>=2.8",)),
    "estimator": Kind(
        ("estimator", "advantage", "advantages"), "advantage_estimators", "advantages", ("corerl-torch", "torch>=2.8")
    ),
    "kl": Kind(("kl",), "kl_types", "kl", ("torch>=2.8",)),
    "environment": Kind(("environment", "env", "game", "tool"), "environments", "environment", ("corerl-envs",)),
    "agent": Kind(("agent", "harness"), "agents", "agent", ("corerl-agents",)),
    "backend": Kind(
        ("backend", "engine", "rollout"),
        "rollout_backends",
        "backend",
        ("corerl-torch", "torch>=2.8", "transformers>=5.0"),
    ),
    "strategy": Kind(
        ("strategy", "trainer"),
        "training_strategies",
        "strategy",
        ("corerl-torch", "torch>=2.8", "transformers>=5.0", "safetensors"),
    ),
}

DEFAULT_KIND = "reward"


@click.group()
def new() -> None:
    """Write new code from a template."""


@new.command()
@click.argument("name")
@click.option("--kind", type=click.Choice(list(KINDS)), help="Kind of the part; default: from the last word of NAME.")
@click.option("--out", type=click.Path(path_type=Path), default=".", help="Parent folder of NAME/.")
def plugin(name: str, kind: str | None, out: Path) -> None:
    """Write a working, tested distribution NAME: a plugin with one part.

    NAME has lower-case letters, digits and hyphens, for example my-reward.
    """
    chosen, why = (kind, "") if kind else _guess(name)
    registry = _registry(chosen)
    _check_name(name, chosen, registry)
    folder = out / name
    if folder.exists() or folder.is_symlink():
        raise RequestError(f"{folder} exists already and is not overwritten: choose another name or --out")
    require_writable(out, "--out")
    with atomic_path(folder, folder=True) as temporary:
        for path, text in render(name, chosen).items():
            (temporary / path).parent.mkdir(parents=True, exist_ok=True)
            (temporary / path).write_text(text, encoding="utf-8")
    echo(f"wrote {folder}: {_article(registry.kind)} {registry.kind}{why}")
    echo("next:")
    commands = ("pip install -e .", "pytest", f"corerl plugins check {name}", "corerl train example.yaml")
    for command in (f"cd {shlex.quote(str(folder))}", *commands):
        echo(f"  {command}")
    echo("README.md has the commands that make the data and the model of example.yaml")


def render(name: str, kind: str) -> dict[str, str]:
    """Path in the plugin's folder -> text of the file, for every file of a plugin called ``name``."""
    package, made = package_of(name), KINDS[kind]
    registry = _registry(kind)
    major, minor, *_ = __version__.split(".")
    own_range = f">={major}.{minor},<{major}.{int(minor) + 1}"
    required = [each + own_range * each.startswith("corerl") for each in ("corerl", *made.requires)]
    values = {
        "distribution": name,
        "package": package,
        "class_name": "".join(word.capitalize() for word in name.split("-")),
        "module": made.module,
        "a_kind": f"{_article(registry.kind).capitalize()} {registry.kind}",
        "config_key": registry.config_key,
        "dependencies": ", ".join(f'"{each}"' for each in required),
    }
    files = {}
    for root in (TEMPLATES / "common", TEMPLATES / kind):
        for file in sorted(root.rglob("*.tmpl")):
            path = file.relative_to(root).as_posix().removesuffix(".tmpl").replace("src/package/", f"src/{package}/")
            files[path] = Template(file.read_text(encoding="utf-8")).substitute(values)
    return files


def _registry(kind: str) -> Registry[object]:
    """Raises RequestError if the plugin that adds the kind is disabled."""
    registry: Registry[object] | None = getattr(load_plugins().registries, KINDS[kind].registry, None)
    if registry is None:
        raise RequestError(f"--kind {kind}: needs the plugin {KINDS[kind].requires[0]}, which is disabled or broken")
    return registry


def package_of(name: str) -> str:
    """The import name of a distribution."""
    return name.replace("-", "_")


def _guess(name: str) -> tuple[str, str]:
    """The kind, and the reason for it."""
    last = re.split(r"[^a-z]+", _hyphenated(name))[-1]
    for kind, made in KINDS.items():
        if last in made.words:
            return kind, " (by its name; --kind makes another)"
    return DEFAULT_KIND, f" (the default; --kind makes another: {', '.join(KINDS)})"


def _check_name(name: str, kind: str, registry: Registry[object]) -> None:
    """Raise RequestError if ``name`` cannot name a new distribution."""
    if not _NAME.fullmatch(name):
        suggestion = _hyphenated(name) or f"my-{kind}"
        suggestion = suggestion if suggestion[0].isalpha() else f"my-{suggestion}"
        raise RequestError(
            f"'{name}' cannot name a distribution: write lower-case letters, digits and single hyphens, such as "
            f"'{suggestion}'"
        )
    package = package_of(name)
    if keyword.iskeyword(package) or _is_module(package):
        what = "a keyword of Python" if keyword.iskeyword(package) else "an existing module"
        raise RequestError(f"'{name}' would be imported as {package}, {what}: choose another name, such as 'my-{name}'")
    if package in registry or package in known_names(registry.kind):
        owner = registry.get(package).owner if package in registry else known_names(registry.kind)[package]
        raise RequestError(
            f"the {registry.kind} '{package}' is registered by {owner}: choose another name, such as 'my-{name}'"
        )


def _is_module(package: str) -> bool:
    """Whether the name is that of a module; a plain folder on the path does not count."""
    if package in sys.stdlib_module_names:
        return True
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def _hyphenated(name: str) -> str:
    """The words of a name in lower case, joined by hyphens: 'MyReward_2' is 'my-reward-2'; '' without words."""
    return "-".join(re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()))


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"
