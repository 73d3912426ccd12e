"""``python scripts/wheels.py dist``: the wheel and the sdist of every distribution, checked.

With ``--try``, the wheels that are there are installed into fresh environments by pip and by uv, for this Python or for
each ``--python``. ``--train`` also installs torch and trains one step with a plugin from outside.
"""

import argparse
import os
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
    package = facts["name"].replace("-", "_")
    [built] = out.glob(f"{package}-*-py3-none-any.whl")  # the version of the core is in its code
    stem = built.name.removesuffix("-py3-none-any.whl")
    found = []
    with zipfile.ZipFile(built) as wheel:
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


def attempt(out: Path, python: str, installer: str, train: bool) -> tuple[bool, str]:
    """Whether the tests in a fresh environment passed, and their last line."""
    # torch and transformers of this environment are links there, if it is the same Python
    fresh = ("links" if python == sys.executable else "1") if train else ""
    variables = {"CORERL_WHEELS": str(out), "CORERL_FRESH_PYTHON": python, "CORERL_FRESH_INSTALLER": installer}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/integration/test_third_party.py"]
    environment = {**os.environ, **variables, "CORERL_FRESH_ENVIRONMENT": fresh}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-2000:])
    return done.returncode == 0, done.stdout.rstrip().rpartition("\n")[2]


def try_all(out: Path, pythons: list[str], train: bool) -> None:
    """Print a line for each Python and installer.

    Raises:
        SystemExit: a wheel is missing, or a test failed.
    """
    if not list(out.glob("corerl-*.whl")):
        raise SystemExit(f"error: {out} holds no wheel of corerl: make wheels")
    failures = 0
    for python in pythons:
        version = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        for installer in ("pip", "uv"):
            passed, line = attempt(out, python, installer, train)
            failures += not passed
            print(f"{version:<15} {installer:<4} {line}", flush=True)
    if failures:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder; it must be empty or absent, but for --try")
    parser.add_argument("--try", dest="attempt", action="store_true", help="install what is there, and build nothing")
    parser.add_argument("--python", action="append", metavar="PATH", help="an interpreter for --try; may be repeated")
    parser.add_argument("--train", action="store_true", help="with --try: install torch too, and train one step")
    given = parser.parse_args()
    out: Path = given.out.resolve()
    if given.attempt:
        try_all(out, given.python or [sys.executable], given.train)
    else:
        build_all(out)


def build_all(out: Path) -> None:
    """Build and check every distribution.

    Raises:
        SystemExit: the folder is not empty, or a distribution cannot be built or lacks a part.
    """
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
