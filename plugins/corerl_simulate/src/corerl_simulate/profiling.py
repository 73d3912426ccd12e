"""The table of this machine, written to a file."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from corerl.cli.common import LoadedConfig
from corerl.contracts.training_strategies import TOKENS
from corerl.errors import ConfigError
from corerl.files import atomic_path, require_writable
from corerl.models import resolve_device
from corerl_check import model_size
from corerl_simulate.calibration import calibrate
from corerl_simulate.fitting import fit
from corerl_simulate.job import job_of
from corerl_simulate.table import DEFAULT, Engine, Table, read_table
from corerl_tools.common import table as text_table

HEADER = """# Measured by corerl profile on '{device}': strategy {strategy}, engine {engine}, runtime {runtime},
# model {model}.
# Not measured, but those of table h200: links, overlap, training.tensor_parallel, training.eager of compiled layers,
# exchange.rest, rest_us and ray_rest, engines.*.sharing. exchange.weights is 0: weights_gb has all of its time.
"""


def profile(loaded: LoadedConfig, out: Path, name: str | None) -> Iterator[str]:
    """Measure, write the table, and yield lines: the measured calls beside the table's.

    Raises:
        RequestError: the file cannot be written, or something of the config cannot be measured.
    """
    config, parts, _ = loaded
    if out.suffix not in (".yaml", ".yml"):
        raise ConfigError("--out", f"must end in .yaml, not '{out.suffix}'")
    require_writable(out.parent, "--out")
    actor, start = config.actor, read_table(DEFAULT)
    device = resolve_device(actor.device)  # costs are otherwise those of a GPU
    actor.ppo_max_token_len_per_gpu = actor.ppo_max_token_len_per_gpu or TOKENS[device]
    backend = parts.rollout_backend.entry.name
    known = dataclasses.replace(start, engines={backend.removeprefix("forced_"): Engine(), **start.engines})
    job = job_of(config, parts, {"actor": model_size(config.model, "cuda")}, known)
    measured = calibrate(loaded)
    fitted = fit(job, measured, known, name or measured.device)
    header = HEADER.format(
        device=measured.device,
        strategy=parts.strategy.entry.name,
        engine=backend,
        runtime=parts.runtime.entry.name,
        model=config.model.path,
    )
    with atomic_path(out) as unfinished:
        unfinished.write_text(header + yaml.safe_dump(plain(fitted.table), sort_keys=False))
    rows = [(words, f"{took:.3f}", f"{by_table:.3f}") for words, took, by_table in fitted.calls]
    yield text_table([("call", "measured s", "by the table"), *rows])
    yield f"\nwrote {out}: corerl simulate CONFIG --table {out}"


def plain(table: Table) -> dict[str, Any]:
    """For YAML, with 5 digits."""

    def rounded(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: rounded(each) for key, each in value.items()}
        return float(f"{value:.5g}") if isinstance(value, float) else int(value) if isinstance(value, bool) else value

    values: dict[str, Any] = rounded(dataclasses.asdict(table))
    return values
