"""Options of profiles: ``trainer.profile``."""

from collections.abc import Iterator
from dataclasses import dataclass

from corerl.config import typed
from corerl.contracts.config import TrainConfig
from corerl.contracts.options import did_you_mean, option
from corerl.errors import ConfigError
from corerl.registry.parts import Parts

KEY = "trainer.profile"
ROLES = ("actor", "critic", "ref", "rollout")


@dataclass
class ProfileOptions:
    """Which steps, ranks and roles are profiled, and how."""

    steps: list[int] = option(help="training steps (1, 2, …)", factory=list)
    ranks: list[int] | None = option(help="ranks of each role; null: all", factory=lambda: [0])
    roles: list[str] | None = option(None, "of actor, critic, ref and rollout; null: all that the run has")
    trace: bool = option(True, "a Chrome trace of operations and kernels")
    memory: bool = option(False, "a snapshot of a GPU's memory with its history; on a CPU, allocations in the trace")
    stacks: bool = option(False, "Python's stack of each operation, C++ stacks in snapshots: several times slower")
    shapes: bool = option(False, "shapes of the tensors of each operation")
    max_entries: int = option(1_000_000, "memory: largest number of allocations in the history", ge=1)


def read_options(config: TrainConfig) -> ProfileOptions:
    """
    Raises:
        ConfigError: an unknown or wrong option.
    """
    return typed.build(ProfileOptions, config.trainer.profile, KEY)


def violations(config: TrainConfig, parts: Parts) -> Iterator[ConfigError]:
    """An error for each wrong option."""
    if not config.trainer.profile:
        return
    try:
        options = read_options(config)
    except ConfigError as error:
        yield error
        return
    if not options.steps or min(options.steps) < 1:
        yield ConfigError(f"{KEY}.steps", f"must name steps, the first of which is 1, not {options.steps}")
    last = config.trainer.total_training_steps
    if last is not None and options.steps and max(options.steps) > last:
        yield ConfigError(
            f"{KEY}.steps", f"step {max(options.steps)} comes after the last, trainer.total_training_steps = {last}"
        )
    if not (options.trace or options.memory):
        yield ConfigError(f"{KEY}.trace", "must be true if trainer.profile.memory is false: nothing would be written")
    if options.ranks is not None and (not options.ranks or min(options.ranks) < 0):
        yield ConfigError(f"{KEY}.ranks", f"must be ranks (0, 1, …), or null for all, not {options.ranks}")
    yield from _wrong_ranks(options, config)
    has = {"actor", "rollout", *(("critic",) if parts.value_loss else ()), *(("ref",) if parts.needs_ref else ())}
    for role in options.roles or ():
        if role not in ROLES:
            yield ConfigError(f"{KEY}.roles", f"'{role}' is none of {', '.join(ROLES)}{did_you_mean(role, ROLES)}")
        elif role not in has:
            yield ConfigError(f"{KEY}.roles", f"this run has no {role}; it has {', '.join(sorted(has))}")
    if options.roles == []:
        yield ConfigError(f"{KEY}.roles", f"must name some of {', '.join(ROLES)}, or be null for all")


def _wrong_ranks(options: ProfileOptions, config: TrainConfig) -> Iterator[ConfigError]:
    """Ranks beyond the GPUs of training; the number of workers without GPUs is the runtime's."""
    gpus = config.runtime.nnodes * config.runtime.n_gpus_per_node
    if gpus and options.ranks and max(options.ranks) >= gpus and options.roles != ["rollout"]:
        yield ConfigError(f"{KEY}.ranks", f"rank {max(options.ranks)} does not exist: training has {gpus} GPUs")
