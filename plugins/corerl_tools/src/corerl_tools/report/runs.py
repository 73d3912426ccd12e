"""The contents of a run folder, as plain values for the page."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from corerl.config.load import check_nesting
from corerl.errors import ConfigError
from corerl.files import reading
from corerl.telemetry.metrics_log import read_metrics
from corerl_tools.report.curves import curves
from corerl_tools.status import read_status

Record = dict[str, float]


def read_records(folder: Path) -> list[Record]:
    """The metrics of a run.

    Raises:
        ConfigError: the folder has no metrics.
    """
    records = read_metrics(folder / "metrics.jsonl")
    if not records:
        inside = max(folder.glob("*/metrics.jsonl"), key=lambda file: file.stat().st_mtime, default=None)
        near = "" if inside is None else f"; the last run in it is {inside.parent}"
        raise ConfigError("", f"{folder} holds no metrics.jsonl of a run{near}")
    return records


def run_values(folder: Path, name: str, records: Sequence[Record]) -> dict[str, Any]:
    """One run without its samples: name, status, curves, configuration and used parts."""
    status = read_status(folder)
    plugins = folder / "plugins.json"
    with reading(plugins):
        parts = {
            f"{part['part']}: {part['name']}": f"{part['distribution']} {part['version']}"
            for part in (json.loads(plugins.read_text()) if plugins.is_file() else [])
        }
    return {
        "name": name,
        "status": asdict(status) if status else None,
        "steps": int(records[-1]["step"]),
        "curves": curves(records),
        "config": read_settings(folder),
        "parts": parts,
    }


def read_settings(folder: Path) -> dict[str, str]:
    """The configuration of a run, flat; empty without one."""
    config = folder / "config.yaml"
    with reading(config):
        if not config.is_file():
            return {}
        check_nesting(config.read_text(encoding="utf-8"))
        return flat(OmegaConf.to_container(OmegaConf.load(config)))


def run_names(folders: Sequence[Path]) -> list[str]:
    """A short name for each run: its path below the common folder, at most ``<experiment>/<time>``."""
    absolute = [folder.resolve() for folder in folders]
    names = ["/".join(folder.parts[-2:]) for folder in absolute]
    return names if len(set(names)) == len(names) else [str(folder) for folder in absolute]


def config_defaults() -> dict[str, str]:
    """The defaults of all keys of a training configuration, as a flat mapping."""
    from corerl.contracts.config import ModelConfig, TrainConfig

    values = flat(asdict(TrainConfig(model=ModelConfig(path=""))))
    return {key: value for key, value in values.items() if key != "model.path"}


def flat(values: Any, prefix: str = "") -> dict[str, str]:
    """Nested mappings as dotted key -> value, with the value as YAML in one line.

    >>> flat({"rollout": {"n": 8, "options": {}}})
    {'rollout.n': '8', 'rollout.options': '{}'}
    """
    if isinstance(values, dict) and values:
        parts = (flat(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in values.items())
        return {key: value for part in parts for key, value in part.items()}
    return {prefix: values if isinstance(values, str) else json.dumps(values, default=str)}
