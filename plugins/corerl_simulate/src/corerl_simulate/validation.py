"""Measured steps beside simulated ones."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corerl.config import typed
from corerl.config.load import read
from corerl.contracts.config import TrainConfig
from corerl.plugins import load_plugins
from corerl.registry.parts import resolve_parts
from corerl_check import ModelSize
from corerl_simulate.job import job_of, needs
from corerl_simulate.lengths import Lengths, LogNormal, lengths_of
from corerl_simulate.run import Step, simulate
from corerl_simulate.table import Table, read_mapping, read_table

MEASURED = Path(__file__).parent / "measured"
DRAWN = LogNormal(200.0, 0.6, whole_groups=True)
"""of benchmarks/gpu/forced_lengths.py"""


@dataclass(frozen=True)
class Compared:
    """A step of both kinds.

    Attributes:
        source: of the measurement: a section of docs/performance.md, or an issue.
        beside: what is known of the measurement and not in the table of rates; '' if nothing is.
        measured: part of a step -> seconds; ``step`` is the whole.
    """

    name: str
    source: str
    beside: str
    measured: Mapping[str, float]
    simulated: Step

    @property
    def ratio(self) -> float:
        """Simulated by measured seconds of the step."""
        return self.simulated.seconds / self.measured["step"]


def shape(values: Mapping[str, Any]) -> ModelSize:
    """The size of a model of Qwen's kind from its dimensions, without norms and biases."""
    hidden, heads, vocabulary = values["hidden"], values["heads"], 151_936
    attention = hidden * values["head_size"] * (2 * heads + 2 * values["key_value_heads"])
    layer = attention + 3 * hidden * values["intermediate"] * values.get("experts", 1)
    outside = vocabulary * hidden * (1 if values.get("tied", True) else 2)
    parameters = values["layers"] * layer + outside
    return ModelSize(
        parameters=parameters,
        trained=parameters,
        layer=layer,
        beside=outside,
        layers=values["layers"],
        hidden=hidden,
        intermediate=values["intermediate"] * values.get("chosen", 1),
        heads=heads,
        key_value_heads=values["key_value_heads"],
        head_size=values["head_size"],
        vocabulary=vocabulary,
        bytes=2,
        positions=32_768,
        output=0 if values.get("tied", True) else vocabulary * hidden,
    )


def compare(table: Table | None = None, name: str = "h200") -> Iterator[Compared]:
    """All measured steps of a file in ``MEASURED`` beside simulated ones.

    Means of three steps with staleness, which differ from each other; without, one step.
    """
    table = table or read_table(name)
    values = read_mapping(MEASURED / f"{name}.yaml")
    plugins = load_plugins()
    for case in values["steps"]:
        setting = values["settings"][case["setting"]]
        overrides = ["model.path=none", *values["base"], *setting["overrides"], *case.get("overrides", ())]
        config = typed.build(TrainConfig, read(TrainConfig, None, overrides))
        parts = resolve_parts(config, plugins.registries)
        size = shape(values["shapes"][case["shape"]])
        job = job_of(config, parts, dict.fromkeys(needs(parts), size), table)
        lengths: Lengths = DRAWN if setting["lengths"] == "drawn" else lengths_of(setting["lengths"])
        steps = 3 if config.trainer.max_staleness else 1
        step = simulate(job, lengths, setting["prompt"], table, steps=steps, mps=case.get("mps", True))
        yield Compared(case["name"], case["source"], case.get("beside", ""), case["measured"], step)
