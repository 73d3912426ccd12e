"""Main memory of a run on the CPU, by phase."""

from collections.abc import Mapping

from corerl.contracts.config import TrainConfig
from corerl_check import GIB, GenerationShare, ModelSize, TrainingShare
from corerl_tools.check.memory_parts import UPDATE, Phase, generation_parts, tokens_of, update_parts

CPU_PROCESS = 0.4 * GIB
"""bytes of a process without CUDA: Python and the libraries, measured before a model is loaded"""

COPIED = 1.5
"""bytes of the copy for a checkpoint by those of the optimizer's state: two moments, and the float32 weights"""


def phases(
    config: TrainConfig,
    sizes: Mapping[str, ModelSize],
    shares: Mapping[str, TrainingShare],
    engine: GenerationShare,
    counts: Mapping[str, int],
) -> list[Phase]:
    """The phases of a run on the CPU: all processes of one machine together, which free nothing for each other.

    Args:
        counts: role, and ``rollout`` -> ranks, engines.
    """
    nodes = config.runtime.nnodes

    def here(role: str, size: float) -> float:
        return size * -(-counts[role] // nodes)

    separate = config.runtime.name != "local"
    processes = {"processes": CPU_PROCESS * (1 + separate * sum(-(-count // nodes) for count in counts.values()))}
    rest = {f"{role} at rest": here(role, share.at_rest) for role, share in shares.items()}
    overlaps = config.trainer.max_staleness > 0  # generation, beside training
    generating = {name: here("rollout", size) for name, size in generation_parts(engine).items()}
    waiting = engine.weights + engine.other + (0 if engine.cache_in_calls else engine.kv_cache or 0.0)
    beside = generating if overlaps else {"engine": here("rollout", waiting)}
    found: list[Phase] = []
    copies = {}
    for role in (each for each in ("actor", "critic") if each in sizes):
        update = update_parts(sizes[role], tokens_of(config, role, shares[role], "cpu"), shares[role])
        others = {name: size for name, size in rest.items() if name != f"{role} at rest"}
        whole = {name: here(role, size) for name, size in update.items()}
        found.append(Phase(UPDATE.format(role), {**whole, **others, **beside, **processes}))
        copies[f"copy of the {role}"] = here(role, COPIED * shares[role].optimizer)
    found.append(Phase("generation", {**generating, **rest, **processes}))
    found.append(Phase("checkpoint", {**copies, **rest, **beside, **processes}))
    return found
