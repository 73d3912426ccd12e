"""Write verl's defaults by version, for ``corerl config from-verl``, out of the YAML that verl's wheels publish.

    pip download verl==0.9.1 --no-deps --dest wheels        # and the other versions
    python scripts/verl_defaults.py wheels

Each wheel has a composed config of each engine (``_generated_ppo_trainer.yaml``), or ``ppo_trainer.yaml`` alone before
verl 0.5. The result is a table for each engine: a row is a key, a column is a version, a cell is JSON or empty.
"""

import argparse
import json
import zipfile
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

TABLES = Path(__file__).parents[1] / "plugins" / "corerl_verl" / "src" / "corerl_verl" / "defaults"
ENGINES = {"fsdp": "ppo_trainer", "megatron": "ppo_megatron_trainer"}
LEFT_OUT = ("profiler", "npu_profile", "global_profiler", "_target_", "qat", "turbo_config", "transfer_queue", "skip")
"""names of sections without a counterpart, whose keys are dozens"""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML in which 1e-6 is a number, as for Hydra."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    __import__("re").compile(r"^[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def flat(values: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Dotted key -> leaf; an empty mapping is a leaf."""
    if not isinstance(values, dict) or not values:
        return {".".join(path): values}
    return {
        key: leaf
        for name, value in values.items()
        if str(name) not in LEFT_OUT and name != "defaults" and name != "hydra"
        for key, leaf in flat(value, (*path, str(name))).items()
    }


def published(wheel: Path, name: str) -> dict[str, Any]:
    """The flat defaults of one wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [f"verl/trainer/config/{prefix}{name}.yaml" for prefix in ("_generated_", "")]
        file = next(each for each in names if each in archive.namelist())
        return flat(yaml.load(archive.read(file), _Loader))


def main() -> None:
    """Read every wheel of a folder and write one table an engine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("wheels", type=Path, help="folder of wheels of verl")
    parser.add_argument("--tables", type=Path, default=TABLES)
    options = parser.parse_args()
    wheels = {tuple(map(int, path.name.split("-")[1].split(".")[:2])): path for path in options.wheels.rglob("*.whl")}
    for engine, name in ENGINES.items():
        columns = {version: published(wheel, name) for version, wheel in sorted(wheels.items())}
        keys = sorted({key for column in columns.values() for key in column})
        lines = ["\t".join(["key", *(".".join(map(str, version)) for version in columns)])]
        for key in keys:
            cells = (json.dumps(column[key]) if key in column else "" for column in columns.values())
            lines.append("\t".join([key, *cells]))
        (options.tables / f"{engine}.tsv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
