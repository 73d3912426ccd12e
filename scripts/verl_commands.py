"""Measure `corerl config from-verl` on a folder of commands of verl: shell scripts and YAML configs.

    python -m scripts.verl_commands FOLDER [--details]

| count | meaning |
|---|---|
| builds | the converted config is read by CoreRL without an error |
| checks | keys, names and rules of `corerl check` find no error; model, data and devices are taken as given |
| loses no key | every argument is kept, changed with a remark, without effect, or named as impossible |
| loses nothing | builds, checks, and no argument is unknown or without a counterpart in CoreRL |
| changed silently | a value in effect differs from verl's without a remark: `MEANINGS`, for this comparison alone |
"""

import argparse
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from corerl.cli.common import violations
from corerl.config import typed
from corerl.contracts.config import TrainConfig
from corerl.errors import CoreRLError
from corerl.plugins import load_plugins
from corerl.registry.parts import Parts, resolve_parts
from corerl_verl import hydra, launches
from corerl_verl.from_verl import Converted
from corerl_verl.sources import CONFIGS, SCRIPTS, Source, converted, read
from corerl_verl.versions import defaults
from scripts.verl_meanings import MEANINGS, Values

OF_THIS_MACHINE = ("is not installed", "needs a folder with a config.json")
"""words of findings about packages and folders that are not here"""


def effective(source: Source, result: Converted) -> Values:
    """verl's values: the command over the defaults of its version; independent of the converter's own reading."""
    arguments = hydra.parse(source.launch.arguments)
    given = {**source.config, **arguments.values}
    known = defaults(result.version, result.engine)

    def value(key: str, depth: int = 0) -> Any:
        found = given.get(key, given.get(key.removeprefix("actor_rollout_ref."), known.get(key)))
        match = re.fullmatch(r"\$\{(?:oc\.select:)?\s*([\w.]+)\s*(?:,\s*(.*))?\}", str(found))
        if not match or depth > 5:
            return found
        name = f"{key.rpartition('.')[0]}{match[1]}" if match[1].startswith(".") else match[1]
        inner = value(name, depth + 1)
        return hydra.value(match[2]) if inner is None and match[2] else inner

    return value


def differences(source: Source, result: Converted, config: TrainConfig, parts: Parts) -> list[str]:
    """Properties that differ from verl's without a remark."""
    verl = effective(source, result)
    spoken = " ".join(
        each for remark in result.remarks if remark.kind in ("changed", "missing") for each in remark.arguments
    )
    found = []
    for name, meaning in MEANINGS.items():
        expected = meaning.verl(verl)
        got = meaning.here(config, parts)
        keys = [key.removeprefix("actor_rollout_ref.") for key in meaning.keys]
        if expected is None or _equal(expected, got) or any(key in spoken for key in keys):
            continue
        found.append(f"{name}: verl {expected}, here {got}")
    return found


def _equal(expected: Any, got: Any) -> bool:
    if isinstance(expected, tuple) and isinstance(got, tuple):
        return all(map(_equal, expected, got))
    return bool(expected == got or str(expected).lower() == str(got).lower())


class Outcome(NamedTuple):
    """The result for one training of one file."""

    name: str
    error: str = ""
    wrong: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def outcomes(file: Path) -> list[Outcome]:
    """One outcome for each training that the file starts; none for a file that starts no training."""
    environment = {"HOME": "~", "PWD": ".", "USER": "user"}
    if file.suffix in SCRIPTS:
        try:
            number = len(launches.of_script(file.read_text(), environment, (), file.parent).launches)
        except CoreRLError as error:
            return (
                []
                if "starts no training" in str(error) or "no command here" in str(error)
                else [Outcome(file.name, str(error))]
            )
        return [outcome(read([str(file)], environment, each), f"{file.name}:{each}") for each in range(1, number + 1)]
    return [outcome(read([str(file)], environment), file.name)]


def outcome(source: Source, name: str) -> Outcome:
    """Convert one command and compare."""
    plugins = load_plugins()
    try:
        result = converted(source)
        config = typed.build(TrainConfig, result.values)
    except CoreRLError as error:
        return Outcome(name, str(error))
    lost = tuple(str(remark) for remark in result.remarks if remark.kind == "unknown")
    missing = tuple(str(remark) for remark in result.remarks if remark.kind == "missing")
    try:
        parts = resolve_parts(config, plugins.registries)
    except CoreRLError as error:
        return Outcome(name, "", (str(error),), lost, (), missing)
    found = map(str, violations(config, parts, plugins))
    wrong = [each for each in found if not any(words in each for words in OF_THIS_MACHINE)]
    return Outcome(name, "", tuple(wrong), lost, tuple(differences(source, result, config, parts)), missing)


def main() -> None:
    """Print the counts, and with --details what is behind them."""
    parser = argparse.ArgumentParser(description="Measure corerl config from-verl on a folder of commands.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--details", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    files = sorted(each for each in options.folder.rglob("*") if each.suffix in (*SCRIPTS, *CONFIGS))
    found = [each for file in files for each in outcomes(file)]
    built = [each for each in found if not each.error]
    counts = Counter(
        {
            "builds": len(built),
            "checks": sum(not each.wrong for each in built),
            "loses no key": sum(not each.lost for each in built),
            "loses nothing": sum(not (each.wrong or each.lost or each.missing) for each in built),
            "changed silently": sum(bool(each.silent) for each in built),
        }
    )
    print(f"| commands | {len(found)} | |\n|---|---|---|")
    for name, number in counts.items():
        print(f"| {name} | {number} | {number / max(1, len(found)):.1%} |")
    if options.details:
        for each in found:
            for kind, sentences in (
                ("error", [each.error] if each.error else []),
                ("check", each.wrong),
                ("lost", each.lost),
                ("silent", each.silent),
                ("missing", each.missing),
            ):
                for sentence in sentences:
                    print(f"{each.name}: {kind}: {sentence}")


if __name__ == "__main__":
    main()
