"""Measurements of this machine with the model, strategy, engine and runtime of a config; :mod:`fitting` reads them."""

import asyncio
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch

from corerl.cli.common import LoadedConfig
from corerl.contracts.config import TrainConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.contracts.runtimes import Role
from corerl.contracts.training_strategies import TOKENS
from corerl.errors import RequestError
from corerl.models import compute_dtype, resolve_device
from corerl.objective.aggregation import loss_weights
from corerl.rollout.engines import Engines
from corerl.rollout.worker import RolloutWorker
from corerl.terminal.notices import say
from corerl.trainer.build import rollout_role
from corerl.trainer.device_sharing import DeviceSharing
from corerl.trainer.workers import PolicyWorker
from corerl_simulate.costs import Rows

REPEATS = 2
"""of each measurement after a first one that is not counted; their mean counts"""
MICRO_BATCHES = 4
"""of the largest training call, at most"""
MOST_SAMPLES = 1024
"""of the largest generation, at most"""
SHARES = (0.25, 0.5, 1.0)
"""of the largest call"""


@dataclass(frozen=True)
class Decoded:
    """A generation of equal responses: so many prompts with ``n`` samples of ``tokens`` tokens."""

    prompts: int
    n: int
    prompt: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Measured:
    """Seconds of calls, and bare rates of the device of the first worker.

    Attributes:
        device: its name.
        memory_gib, matrix_tflops, terabytes: as of :class:`corerl_simulate.table.Gpu`.
        forward, update: rows of a call -> seconds.
        weights: of sending them to the engines, with digests.
        handover, wake: of giving the engines' memory to training, and back.
        most: samples that the engines together compute at a time, 0 if unknown; None: they report no load.
    """

    device: str
    memory_gib: float
    matrix_tflops: float
    terabytes: float
    forward: Sequence[tuple[Rows, float]]
    update: Sequence[tuple[Rows, float]]
    decoded: Sequence[Decoded]
    weights: float
    handover: float
    wake: float
    most: int | None


def calibrate(loaded: LoadedConfig) -> Measured:
    """Start policy and engines, measure, end them.

    Raises:
        RequestError: the policy loss needs logits, whose other inputs only a run has.
    """
    config, parts, plugins = loaded
    if parts.policy_loss.entry.facts.of_logits is not None:
        raise RequestError(f"corerl profile measures no policy loss that needs logits ({parts.policy_loss.entry.name})")
    plugins.hook.check_requirements(config=config, parts=parts)
    with ExitStack() as stack:
        runtime = parts.runtime.load()(config.runtime)
        stack.callback(runtime.close)
        strategy = parts.strategy.entry
        role = Role("actor", "actor.strategy", strategy.name, strategy.facts.distributed)
        engine_role = rollout_role(config, parts.rollout_backend.entry)
        runtime.reserve([role, engine_role])
        say(f"starting {strategy.name} and {engine_role.part}")
        actor = runtime.spawn(role, PolicyWorker, config, 1000)
        rollout = runtime.spawn(engine_role, RolloutWorker, config)
        engines = Engines(runtime, actor, rollout, 0)
        stack.callback(engines.close)
        return _measured(config, actor, engines)


def _measured(config: TrainConfig, actor: PolicyWorker, engines: Engines) -> Measured:
    shape = actor.shape()
    device, memory, tflops, terabytes = actor.apply(functools.partial(_device, config))
    say(f"{device}: {tflops:.3g} TFLOP/s, {terabytes:.3g} TB/s")
    on_gpu = resolve_device(config.actor.device) == "cuda" and not config.rollout.n_gpus_per_node
    free = config.rollout.free_cache_engine
    frees = on_gpu and not config.trainer.max_staleness if free is None else free
    sharing = DeviceSharing(engines, [actor], free_engine=frees, offload=config.trainer.offload_while_generating)
    weights = _seconds(lambda: engines.send_weights(1, verify=True))
    sharing.to_generation(asleep=False)
    decoded = list(_decoded(config, engines, shape.vocabulary))
    load = engines.engine_load()
    handover, wake = _timed(sharing.to_training), 0.0
    forward, update = [], []
    for rows in _batches(config, shape.data_parallel_size, shape.vocabulary):
        seconds = _seconds(lambda rows=rows: actor.forward(rows.tokens(), ["log_probs", "entropy"]))  # type: ignore[misc]
        forward.append((_rows(rows), seconds))
        say(f"log-probs of {len(rows)} rows: {seconds:.3f} s")
        seconds = _seconds(lambda rows=rows: actor.update(rows))  # type: ignore[misc]
        update.append((_rows(rows), seconds))
        say(f"update with {len(rows)} rows: {seconds:.3f} s")
    wake = _timed(sharing.to_weights)
    engines.send_weights(2, verify=True)
    wake += _timed(sharing.to_generation)
    most = None if load is None else load.room
    return Measured(device, memory, tflops, terabytes, forward, update, decoded, weights, handover, wake, most)


def _decoded(config: TrainConfig, engines: Engines, vocabulary: int) -> Iterator[Decoded]:
    """Generations of a quarter, a half and all of a step's prompts, each with two lengths."""
    rollout, prompt, longest = config.rollout, _prompt(config), config.data.max_response_length
    largest = max(1, min(config.data.train_batch_size, MOST_SAMPLES // rollout.n))
    sizes = sorted({max(1, round(share * largest)) for share in SHARES})
    with asyncio.Runner() as runner:
        for prompts in sizes:
            for tokens in sorted({max(1, longest // 4), longest}):
                sampling = SamplingParams(
                    tokens,
                    n=rollout.n,
                    temperature=rollout.temperature,
                    top_p=rollout.top_p,
                    top_k=rollout.top_k,
                    min_p=rollout.min_p,
                    ignore_eos=True,
                )

                def once(prompts: int = prompts, sampling: SamplingParams = sampling) -> None:
                    name = f"profile-{time.perf_counter_ns()}"
                    requests = [
                        GenerationRequest(f"{name}-{number}", ids, replace(sampling, seed=number))
                        for number, ids in enumerate(_random(prompts, prompt, vocabulary))
                    ]
                    runner.run(engines.generate(requests, _ignore))

                seconds = _seconds(once)
                say(f"{prompts} × {rollout.n} responses of {tokens} tokens: {seconds:.3f} s")
                yield Decoded(prompts, rollout.n, prompt, tokens, seconds)


def _batches(config: TrainConfig, ranks: int, vocabulary: int) -> Iterator[Experience]:
    """Groups of equal rows, of at most a mini-batch and ``MICRO_BATCHES`` micro-batches on each rank."""
    actor, n = config.actor, config.rollout.n
    prompt, response = _prompt(config), max(1, config.data.max_response_length // 2)
    held = actor.ppo_micro_batch_size_per_gpu
    if actor.use_dynamic_bsz:
        tokens = actor.ppo_max_token_len_per_gpu or TOKENS[resolve_device(actor.device)]
        held = max(1, tokens // (prompt + response))
    largest = max(1, min(actor.ppo_mini_batch_size, MICRO_BATCHES * held * ranks // n))
    for groups in sorted({max(1, -(-ranks // n), round(share * largest)) for share in SHARES}):
        prompts = [row for row in _random(groups, prompt, vocabulary) for _ in range(n)]
        rows = collate(prompts, _random(groups * n, response, vocabulary), [row // n for row in range(groups * n)])
        ones = torch.zeros(rows.response_mask.shape)
        rows.old_log_probs = rows.ref_log_probs = rows.rollout_log_probs = ones - 10.0
        rows.advantages = torch.randn(ones.shape, generator=torch.Generator().manual_seed(1))
        rows.selected = torch.zeros_like(rows.response_mask)
        rows.loss_weights = loss_weights(rows.response_mask, "token-mean")
        yield rows


def _rows(rows: Experience) -> Rows:
    return Rows(rows.prompt_lengths, rows.response_lengths, rows.group_ids)


def _prompt(config: TrainConfig) -> int:
    """As many tokens as `corerl simulate` assumes."""
    return max(1, config.data.max_prompt_length // 2)


def _random(rows: int, tokens: int, vocabulary: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    drawn: list[list[int]] = torch.randint(vocabulary, (rows, tokens), generator=generator).tolist()
    return drawn


def _ignore(position: int, completions: list[Completion]) -> None:
    """Responses are not needed."""


def _seconds(call: Callable[[], object]) -> float:
    call()
    return sum(_timed(call) for _ in range(REPEATS)) / REPEATS


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _device(config: TrainConfig, worker: Any) -> tuple[str, float, float, float]:
    """In a worker: the name of its device, GiB of its memory, TFLOP/s of a matrix product, TB/s of a copy."""
    device = resolve_device(config.actor.device)
    on_gpu = device == "cuda"
    size = 8192 if on_gpu else 768
    matrix = torch.randn(size, size, device=device, dtype=compute_dtype(config.model, device))
    block = torch.zeros(2**30 if on_gpu else 2**25, dtype=torch.uint8, device=device)

    def synchronised(call: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            call()
            if on_gpu:
                torch.cuda.synchronize()

        return run

    products = _seconds(synchronised(lambda: matrix @ matrix))
    copies = _seconds(synchronised(block.clone))
    if on_gpu:
        facts = torch.cuda.get_device_properties(0)
        name, memory = facts.name, facts.total_memory / 2**30
    else:
        name, memory = "cpu", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return name, memory, 2 * size**3 / products / 1e12, 2 * block.numel() / copies / 1e12
