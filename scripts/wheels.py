"""``python scripts/wheels.py dist``: the wheel and the sdist of every distribution, checked."""

import argparse
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def projects() -> list[Path]:
    """The core, then the plugins by name."""
    return [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]


def build(project: Path, out: Path) -> None:
    """A wheel and an sdist, without an environment of their own: setuptools must be installed."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(project)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: {project} cannot be built:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def defects(project: Path, out: Path) -> list[str]:
    """Missing or surplus parts of the two files."""
    facts = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    stem = f"{facts['name'].replace('-', '_')}-{facts['version']}"
    package = facts["name"].replace("-", "_")
    found = []
    with zipfile.ZipFile(out / f"{stem}-py3-none-any.whl") as wheel:
        names = set(wheel.namelist())
        metadata = wheel.read(f"{stem}.dist-info/METADATA").decode()
    wanted = {f"{package}/py.typed", f"{stem}.dist-info/licenses/LICENSE"}
    if facts.get("entry-points"):
        wanted.add(f"{package}/plugin.py")
    found += [f"{stem}: the wheel has no {name}" for name in sorted(wanted - names)]
    found += [
        f"{stem}: the wheel has {name}" for name in sorted(names) if name.startswith("tests/") or name.endswith(".pyc")
    ]
    source = project if project == ROOT else project / "src"
    modules = {str(path.relative_to(source)) for path in (source / package).rglob("*.py")}
    found += [f"{stem}: the wheel has no {name}" for name in sorted(modules - names)]
    if "License-Expression: Apache-2.0" not in metadata:
        found.append(f"{stem}: the metadata name no licence")
    with tarfile.open(out / f"{stem}.tar.gz") as sdist:
        members = {member.name for member in sdist.getmembers()}
    missing = {f"{stem}/{name}" for name in ("LICENSE", "README.md", "pyproject.toml")} - members
    return found + [f"{stem}: the sdist has no {name}" for name in sorted(missing)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder; it must be empty or absent")
    out: Path = parser.parse_args().out.resolve()
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"error: {out} is not empty")
    wrong = []
    for project in projects():
        build(project, out)
        wrong += defects(project, out)
        print(project.name, flush=True)
    if wrong:
        raise SystemExit("error: " + "\n".join(wrong))
    print(f"{len(list(out.glob('*.whl')))} wheels and {len(list(out.glob('*.tar.gz')))} sdists in {out}")


if __name__ == "__main__":
    main()
