"""The comparison of layouts: what ``corerl simulate`` prints."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
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
AS_FAST = 1.05
"""times the seconds of the fastest step, up to which fewer GPUs are as fast"""
FAR = 1.3
"""times its seconds in closed form, from which they are not simulated"""


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
        fewer: the fewest GPUs, by halves, whose step is as fast; None: a step on half of the GPUs is slower.
    """

    rows: Sequence[Row]
    refused: Sequence[Refused]
    fitting: int
    assumed: Sequence[str]
    fewer: Row | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "layouts": [row.as_dict() for row in self.rows],
            "fitting": self.fitting,
            "refused": reasons(self.refused),
            "assumed": list(self.assumed),
            "fewer": self.fewer and {"gpus": self.fewer.layout.job.gpus, **self.fewer.as_dict()},
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

    def on(count: int) -> list[Layout | Refused]:
        mean_tokens = {"prompt": float(prompt), "response": mean}
        return layouts(values, plugins, sizes, rates, count, max_staleness=max_staleness, mps=mps, **mean_tokens)

    def simulated(found: Sequence[Layout | Refused]) -> tuple[list[Row], list[Refused]]:
        """The rows of the first layouts, the fastest first, and all refused ones."""
        rows: list[Row] = []
        refused = [each for each in found if isinstance(each, Refused)]
        for layout in (each for each in found if isinstance(each, Layout)):
            if len(rows) == most:
                break
            if error := violation(layout, plugins):
                refused.append(Refused(layout.values, str(error)))
                continue
            try:
                rows.append(Row(layout, simulate(layout.job, drawn, prompt, rates, steps=steps, mps=mps)))
            except RunError as error:
                refused.append(Refused(layout.values, str(error)))
        return sorted(rows, key=lambda row: row.step.seconds), refused

    found = [own_layout(values, plugins, sizes, rates)] if gpus is None else on(gpus)
    rows, refused = simulated(found)
    if any(row.layout.job.engines.stages * row.layout.job.engines.data > 1 for row in rows):
        assumed.append("seconds of an engine's stages and data parallel ranks are computed, not measured")
    smaller = _fewer(rows[0], rates.links.gpus_per_node, on, lambda each: simulated(each)[0]) if gpus and rows else None
    return Comparison(rows, refused, sum(isinstance(each, Layout) for each in found), assumed, smaller)


def _fewer(
    best: Row,
    per_node: int,
    on: Callable[[int], list[Layout | Refused]],
    simulated: Callable[[Sequence[Layout | Refused]], list[Row]],
) -> Row | None:
    """Halve the GPUs as long as a step is as fast as the best one; a host with others is whole."""
    found, gpus = None, best.layout.job.gpus
    while gpus > 1:
        gpus = gpus // 2 if gpus // 2 <= per_node else gpus // 2 // per_node * per_node
        layouts = on(gpus)
        about = min((each.about for each in layouts if isinstance(each, Layout)), default=math.inf)
        rows = simulated(layouts) if about <= FAR * best.layout.about else []
        if not rows or rows[0].step.seconds > AS_FAST * best.step.seconds:
            break
        found = rows[0]
    return found


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
    yield _command(best)
    if found.fewer is not None:
        gpus, seconds = found.fewer.layout.job.gpus, found.fewer.step.seconds
        are = "GPU is" if gpus == 1 else "GPUs are"
        yield f"\n{gpus} {are} as fast: {seconds:.2f} s a step, {best.step.seconds:.2f} s on {best.layout.job.gpus}"
        yield _command(found.fewer)
    for reason in reasons(found.refused)[:3]:
        yield f"refused: {reason}"


def _command(row: Row) -> str:
    return "\ncorerl train CONFIG " + " ".join(_quoted(each) for each in row.layout.overrides())


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
