"""The seconds of a step by its parts, and the seconds that the devices allow at their peak."""

import math
from collections.abc import Mapping, Sequence

from corerl_tools.report.runs import Record

LEAST = 0.01
"""share of a step below which a part is in ``other``"""
FORWARD = ("old_log_prob", "ref")
"""parts that are a forward pass over all rows"""


def seconds_lines(records: Sequence[Record], settings: Mapping[str, str]) -> list[str]:
    """``timing_s/step`` with its parts, means of the steps after the first; ``perf/mfu/actor`` and :func:`at_peak`.

    Args:
        settings: flat keys of the config -> values (:func:`corerl_tools.report.runs.flat`).
    """
    steps, seconds = _later(records), mean_seconds(records)
    if not steps:
        return []
    whole = seconds.pop("step")
    parts = {name: each for name, each in seconds.items() if each >= LEAST * whole}
    if (other := whole - sum(parts.values())) >= LEAST * whole:
        parts["other"] = other
    first, last = int(steps[0]["step"]), int(steps[-1]["step"])
    given = f"step {last}" if first == last else f"mean of steps {first} to {last}"
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    shares = ", ".join(f"{name} {each:.2f} ({each / whole:.0%})" for name, each in ordered)
    lines = [f"timing_s/step: {whole:.2f} s, {given}: {shares}"]
    if peak := at_peak(steps, settings):
        took, least = (sum(part[name] for name in peak) for part in (seconds, peak))
        each = ", ".join(f"{name} {peak[name]:.2f}" for name in peak)
        lines.append(
            f"perf/mfu/actor: {_mean(steps, 'perf/mfu/actor'):.2f}; these parts at the peak of the devices' matrix "
            f"products: {each}; {least:.2f} of {took:.2f} s"
        )
    return lines


def mean_seconds(records: Sequence[Record]) -> dict[str, float]:
    """Part -> its mean seconds in the steps after the first, 0 in a step without it; ``step`` is the whole."""
    steps = _later(records)
    names = dict.fromkeys(name for record in steps for name in record if name.startswith("timing_s/"))
    return {name.removeprefix("timing_s/"): _mean(steps, name) for name in names}


def at_peak(steps: Sequence[Record], settings: Mapping[str, str]) -> dict[str, float]:
    """Part -> its mean seconds at the peak of the devices that ``perf/mfu/actor`` is a share of; empty without.

    A forward pass has a third of an update's operations, of an epoch each. Generation has those of the response tokens
    alone, on its own devices if there are such; reading weights and keys and values, which takes time beside them, is
    not counted. A reference model of its own (``ref.path``) is not counted either, nor one that reads during generation
    (``ref.overlap_parts``).
    """
    update = [record["perf/mfu/actor"] * record.get("timing_s/update_actor", 0.0) for record in steps if _has(record)]
    if not update:
        return {}
    found = {"update_actor": sum(update) / len(update)}
    forward = found["update_actor"] / 3 / max(1, _number(settings, "actor.ppo_epochs", 1))
    timed = {name for record in steps for name in record}
    is_alike = settings.get("ref.path", "null") == "null" and "timing_background_s/ref" not in timed
    found |= {name: forward for name in FORWARD if f"timing_s/{name}" in timed and (name != "ref" or is_alike)}
    prompt, response = (_mean(steps, f"{name}_length/mean") for name in ("prompt", "response"))
    if "timing_s/gen" in timed and response > 0:
        own = _number(settings, "rollout.nnodes", 1) * _number(settings, "rollout.n_gpus_per_node", 0)
        trainers = max(1, _number(settings, "runtime.nnodes", 1) * _number(settings, "runtime.n_gpus_per_node", 0))
        found["gen"] = forward * response / (prompt + response) * (trainers / own if own else 1)
    return found


def _later(records: Sequence[Record]) -> Sequence[Record]:
    """Those of the steps after the first."""
    steps = [record for record in records if record.get("timing_s/step", 0.0) > 0 and record["step"] > 0]
    return steps[1:] or steps


def _has(record: Record) -> bool:
    return math.isfinite(record.get("perf/mfu/actor", math.nan))


def _mean(steps: Sequence[Record], name: str) -> float:
    values = [record[name] for record in steps if math.isfinite(record.get(name, math.nan))]
    return sum(values) / len(steps if name.startswith("timing_s/") else values or [0])


def _number(settings: Mapping[str, str], key: str, default: int) -> int:
    value = settings.get(key, "")
    return int(value) if value.isdecimal() else default
