"""The comparison of layouts: what ``corerl simulate`` prints."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corerl.cli.common import read_train_values
from corerl.config import typed
from corerl.contracts.config import TrainConfig
from corerl.errors import RequestError, RunError
from corerl.registry.parts import resolve_parts
from corerl_check import model_size
from corerl_simulate.job import needs
from corerl_simulate.layouts import Layout, Refused, layouts, own_layout, reasons, violation
from corerl_simulate.lengths import Fixed, Lengths, LogNormal, lengths_of
from corerl_simulate.run import Step, simulate
from corerl_simulate.table import read_table
from corerl_tools.common import table as text_table

SAMPLE = 4096
"""lengths whose mean is taken"""
HEAD = (
    *("layout (trainers, engines)", "staleness", "step s", "tokens/s/GPU", "idle: engines", "trainers"),
    *("GiB: training", "generation", "controller s"),
)
SIGMA = 0.8
"""of the log-normal distribution that is assumed if nothing is known of lengths"""


@dataclass(frozen=True)
class Row:
    """A simulated layout."""

    layout: Layout
    step: Step

    def as_dict(self) -> dict[str, Any]:
        """For JSON: seconds, shares, GiB."""
        training, generation = self.layout.memory
        return {
            "overrides": self.layout.overrides(),
            **dataclasses.asdict(self.step),
            "tokens_per_second_per_gpu": self.step.tokens / self.step.seconds / self.layout.job.gpus,
            "memory_gib": {"training": training, "generation": generation},
        }


@dataclass(frozen=True)
class Comparison:
    """All layouts of a config.

    Attributes:
        rows: the simulated ones, the fastest first.
        fitting: layouts that fit, of which ``rows`` are the first by a closed form.
        assumed: sentences about what the config does not say.
    """

    rows: Sequence[Row]
    refused: Sequence[Refused]
    fitting: int
    assumed: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "layouts": [row.as_dict() for row in self.rows],
            "fitting": self.fitting,
            "refused": reasons(self.refused),
            "assumed": list(self.assumed),
        }


def compared(
    file: Path,
    overrides: Sequence[str],
    plugin_names: tuple[Sequence[str], Sequence[str]],
    *,
    gpus: int | None,
    lengths: str | None,
    prompt: int | None,
    max_staleness: int,
    table: str,
    steps: int,
    most: int,
    mps: bool = True,
) -> Comparison:
    """Simulate the layouts of a config.

    Args:
        gpus: None: the config's own layout alone.
        lengths: see :data:`corerl_simulate.lengths.KINDS`; None: a log-normal one with half of the longest as mean.
        prompt: tokens; None: half of the longest.
        most: layouts that are simulated, the best by a closed form.

    Raises:
        RequestError: the config, the table or the lengths are wrong.
    """
    rates = read_table(table)
    values, plugins = read_train_values(file, overrides, *plugin_names)
    config = typed.build(TrainConfig, values, explain_key=plugins.explain_key)
    parts = resolve_parts(config, plugins.registries)
    paths = {"actor": None, "ref": config.ref.path, "critic": config.critic.path}
    models = {role: dataclasses.replace(config.model, path=paths[role] or config.model.path) for role in needs(parts)}
    sizes = {role: model_size(model, "cuda", "value" if role == "critic" else "lm") for role, model in models.items()}
    if prompt is not None and prompt > config.data.max_prompt_length:
        raise RequestError(f"--prompt-tokens {prompt}: data.max_prompt_length is {config.data.max_prompt_length}")
    assumed = list(_assumed(config, lengths, prompt))
    drawn = _lengths(config, lengths)
    prompt = prompt or max(1, config.data.max_prompt_length // 2)
    limit = config.data.max_response_length
    mean = sum(min(limit, drawn.of(seed, 0)) for seed in range(SAMPLE)) / SAMPLE
    if parts.agent is not None:
        assumed.append("each episode of the agent is one turn, as long as a response")
    if sizes["actor"].routed_bytes:
        assumed.append("experts are computed at the rate of a dense model; measured steps took 2.3 times as long")
    found: list[Layout | Refused]
    if gpus is None:
        found = [own_layout(values, plugins, sizes, rates)]
    else:
        found = layouts(
            values,
            plugins,
            sizes,
            rates,
            gpus,
            max_staleness=max_staleness,
            prompt=float(prompt),
            response=mean,
            mps=mps,
        )
    fitting = [each for each in found if isinstance(each, Layout)]
    refused = [each for each in found if isinstance(each, Refused)]
    rows: list[Row] = []
    for layout in fitting:
        if len(rows) == most:
            break
        if error := violation(layout, plugins):
            refused.append(Refused(layout.values, str(error)))
            continue
        try:
            rows.append(Row(layout, simulate(layout.job, drawn, prompt, rates, steps=steps, mps=mps)))
        except RunError as error:
            refused.append(Refused(layout.values, str(error)))
    if any(row.layout.job.engines.stages * row.layout.job.engines.data > 1 for row in rows):
        assumed.append("seconds of an engine's stages and data parallel ranks are computed, not measured")
    return Comparison(sorted(rows, key=lambda row: row.step.seconds), refused, len(fitting), assumed)


def _assumed(config: TrainConfig, lengths: str | None, prompt: int | None) -> Iterator[str]:
    if lengths is None and not config.rollout.ignore_eos:
        mean = config.data.max_response_length / 2
        yield f"responses have {mean:.0f} tokens on average, log-normal with sigma {SIGMA} (--lengths)"
    if prompt is None:
        yield f"prompts have {max(1, config.data.max_prompt_length // 2)} tokens (--prompt-tokens)"


def _lengths(config: TrainConfig, given: str | None) -> Lengths:
    if given is not None:
        return lengths_of(given)
    if config.rollout.ignore_eos:
        return Fixed(config.data.max_response_length)
    return LogNormal.with_mean(config.data.max_response_length / 2, SIGMA)


def printed(found: Comparison) -> Iterator[str]:
    """Lines for a terminal."""
    for sentence in found.assumed:
        yield f"assumed: {sentence}"
    if not found.rows:
        yield "no layout fits"
        yield from (f"refused: {reason}" for reason in reasons(found.refused)[:8])
        return
    yield f"\n{len(found.rows)} of {found.fitting} layouts that fit, simulated; {len(found.refused)} refused"
    yield text_table([HEAD, *(_cells(row) for row in found.rows)])
    best = found.rows[0]
    yield "\nparts of the fastest, seconds: " + ", ".join(f"{k} {v:.2f}" for k, v in best.step.parts.items())
    yield "\ncorerl train CONFIG " + " ".join(_quoted(each) for each in best.layout.overrides())
    for reason in reasons(found.refused)[:3]:
        yield f"refused: {reason}"


def _cells(row: Row) -> tuple[str, ...]:
    step, (training, generation) = row.step, row.layout.memory
    return (
        row.layout.name(),
        f"{step.staleness:.1f}, at most {step.stalest:.0f}",
        f"{step.seconds:.2f}",
        f"{step.tokens / step.seconds / row.layout.job.gpus:,.0f}",
        f"{step.engines_idle:.0%}",
        f"{step.trainers_idle:.0%}",
        f"{training:.0f}",
        f"{generation:.0f}",
        f"{step.controller:.2f}",
    )


def _quoted(override: str) -> str:
    return f"'{override}'" if any(each in override for each in "{ ") else override
