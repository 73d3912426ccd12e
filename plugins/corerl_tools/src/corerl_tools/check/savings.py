"""Settings that take less memory in a phase, ranked by the bytes that they save by the estimate."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from corerl.cli.common import violations
from corerl.contracts.config import TrainConfig
from corerl.contracts.training_strategies import TOKENS
from corerl.errors import CoreRLError
from corerl.plugins import Plugins
from corerl.registry import Selected
from corerl.registry.parts import Parts, select_rollout_backend
from corerl_check import GIB, Examined, Finding, Machine, SavesMemory, longest
from corerl_tools.check.memory import NEARLY, Estimate

LEAST = GIB / 10
"""bytes that a setting must save"""
MOST = 6
"""settings that are named"""

STRATEGIES = {"actor.strategy": "strategy", "ref.strategy": "ref_strategy", "critic.strategy": "critic_strategy"}
"""key -> attribute of the parts"""

Change = Mapping[str, Any]
"""key of the config -> value"""


@dataclass(frozen=True)
class Run:
    """A config with its parts."""

    config: TrainConfig
    parts: Parts


class Savings:
    """What settings save in the estimate of a run.

    Args:
        estimate: of a run; UntrustedError if a part's options are not known.
    """

    def __init__(
        self, run: Run, plugins: Plugins, estimate: Callable[[Run], Estimate], device: str, machine: Machine
    ) -> None:
        self._run, self._plugins, self._estimate, self._device = run, plugins, estimate, device
        self._machine = machine

    def remedy(self, phase: str, room: float) -> str:
        """One or two sentences: settings by their savings in a phase, and those that together fit into ``room``."""
        ranked = [(saved, change) for saved, change, _ in self._ranked(self._run, phase)]
        if not ranked:
            return "No setting of the config saves memory there: use a smaller model, or more memory."
        named = ", ".join(f"{_words(change)} {saved / GIB:.1f}" for saved, change in ranked[:MOST])
        return f"Settings, by the GiB that each saves there: {named}. {self._together(phase, room)}"

    def _together(self, phase: str, room: float) -> str:
        """The settings that fit into ``room``, each the best one beside those before it."""
        run, chosen = self._run, list[str]()
        while len(chosen) < MOST and _total(self._estimate(run), phase) > NEARLY * room:
            best = next(self._ranked(run, phase), None)
            if best is None:
                break
            chosen.append(_words(best[1]))
            run = best[2]
        left = _total(self._estimate(run), phase)
        fits = "which fits" if left <= NEARLY * room else "still too much: use a smaller model, or more memory"
        return f"{' and '.join(chosen)} leave{'s' if len(chosen) == 1 else ''} {left / GIB:.1f} GiB, {fits}."

    def _ranked(self, run: Run, phase: str) -> Iterator[tuple[float, Change, Run]]:
        """(saved bytes, setting, run with it), the best first, of settings that break no rule."""
        before = _total(self._estimate(run), phase)
        found = []
        for candidate in _candidates(run, self._device):
            change = {key: value for key, value in candidate.items() if _value(run.config, key) != value}
            changed = self._changed(run, change)
            if changed is not None and (saved := before - _total(self._estimate(changed), phase)) >= LEAST:
                found.append((saved, change, changed))
        for each in sorted(found, key=lambda each: -each[0]):
            broken = any(violations(each[2].config, each[2].parts, self._plugins))
            if not broken and (not _is_of_gpus(each[1]) or self._can_start(each[2])):
                yield each

    def _can_start(self, run: Run) -> bool:
        """Whether the runtime finds the GPUs of a run on this machine, or in a cluster."""
        options = run.parts.runtime.options
        found = options.examine("runtime.name", run.config, self._machine) if isinstance(options, Examined) else ()
        return all(isinstance(each, Finding) and each.severity != "error" for each in found)

    def _changed(self, run: Run, change: Change) -> Run | None:
        """The run with a setting; None if a part cannot have it."""
        config, registries = copy.deepcopy(run.config), self._plugins.registries
        for key, value in change.items():
            _set(config, key.split("."), value)
        parts: dict[str, Any] = {}
        try:
            for key, name in STRATEGIES.items():
                given = getattr(config, key.partition(".")[0]).strategy
                if given is not None and any(each.startswith(key) for each in change):
                    parts[name] = registries.training_strategies.select(given, key)
            if any(each.startswith("runtime.options") for each in change):
                runtime, keys = config.runtime, {"name_key": "runtime.name", "options_key": "runtime.options"}
                parts["runtime"] = registries.runtimes.select_named(runtime.name, runtime.options, **keys)
            if any(each.startswith("rollout.options") for each in change):
                parts["rollout_backend"] = select_rollout_backend(config.rollout, registries)
        except CoreRLError:
            return None
        if "strategy" in parts and run.parts.critic_strategy is not None and config.critic.strategy is None:
            parts["critic_strategy"] = parts["strategy"]
        return Run(config, dataclasses.replace(run.parts, **parts))


def _set(config: TrainConfig, key: list[str], value: Any) -> None:
    """Set the value at a key; a part that is a name gets options."""
    *sections, last = key
    place: Any = config
    for name in sections:
        below = place.get(name) if isinstance(place, dict) else getattr(place, name)
        if isinstance(below, str):
            below = {"name": below}
            setattr(place, name, below)
        place = below
    if isinstance(place, dict):
        place[last] = value
    else:
        setattr(place, last, value)


def _value(config: TrainConfig, key: str) -> Any:
    """The value at a key; None of an option that the config does not give."""
    value: Any = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
    return value


def _total(estimate: Estimate, phase: str) -> float:
    return next((each.total for each in estimate.phases if each.name == phase), 0.0)


def _candidates(run: Run, device: str) -> Iterator[Change]:
    """Settings that may take less memory; most take none less in a given phase."""
    config, actor = run.config, run.config.actor
    yield {"model.enable_gradient_checkpointing": True}
    if actor.use_dynamic_bsz:
        for key, given in (
            ("actor.ppo_max_token_len_per_gpu", actor.ppo_max_token_len_per_gpu or TOKENS[device]),
            ("critic.ppo_max_token_len_per_gpu", config.critic.ppo_max_token_len_per_gpu),
        ):
            if given is not None and given > longest(config):
                yield {key: longest(config)}
    else:
        yield {"actor.ppo_micro_batch_size_per_gpu": 1}
    if device == "cuda":
        yield from _of_gpus(config)
    sections: dict[str, Selected[Any] | None] = {key: getattr(run.parts, name) for key, name in STRATEGIES.items()}
    if config.critic.strategy is None:
        del sections["critic.strategy"]  # the actor's
    for key, part in (sections | {"rollout.options": run.parts.rollout_backend}).items():
        if part is not None and isinstance(part.options, SavesMemory):
            for change in part.options.leaner():
                yield _of_part(config, key, change)


def _of_gpus(config: TrainConfig) -> Iterator[Change]:
    """Another use of GPUs, and more of them."""
    runtime, rollout = config.runtime, config.rollout
    yield {"rollout.free_cache_engine": True}
    yield {"trainer.offload_while_generating": True}
    yield {"rollout.tensor_model_parallel_size": 2 * rollout.tensor_model_parallel_size}
    if runtime.name != "local" and runtime.n_gpus_per_node:
        more = {"runtime.nnodes": 2 * runtime.nnodes}
        yield more if runtime.options.get("address") else {**more, "runtime.options.address": "auto"}
        if not rollout.n_gpus_per_node:
            yield {"rollout.n_gpus_per_node": runtime.n_gpus_per_node, "rollout.nnodes": runtime.nnodes}


def _is_of_gpus(change: Change) -> bool:
    """Whether a change takes other GPUs."""
    return any(key.rpartition(".")[2] in ("nnodes", "n_gpus_per_node") for key in change)


def _of_part(config: TrainConfig, key: str, change: Change) -> Change:
    """The keys of a change of a part's options; with ``name`` the part's other options are kept."""
    if "name" not in change:
        return {f"{key}.{name}": value for name, value in change.items()}
    section, _, name = key.partition(".")
    given = getattr(getattr(config, section), name)
    return {key: {**(given if isinstance(given, dict) else {}), **change}}


def _words(change: Change) -> str:
    return " with ".join(f"{key}={_text(value)}" for key, value in change.items())


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(each)}" for key, each in value.items()) + "}"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
