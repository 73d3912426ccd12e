"""Stubs of an engine and a training strategy, for ``benchmarks/controller.py``: a run's work without its models."""

import os
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from corerl import hookimpl, option
from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean
from corerl.contracts.rollout_backends import Completion, GenerationRequest, OnFinished
from corerl.contracts.throughput import ModelShape
from corerl.contracts.token_outputs import TokenOutputs


@dataclass
class EngineOptions:
    """Options of engine ``stub``."""

    tokens: int = option(1024, "tokens of each response", ge=1)
    vocabulary: int = option(300, "ids of tokens are below", ge=1)


class Engine:
    """Answers at once, with responses of one length as an engine's frames carry them."""

    def __init__(self, model: Any, rollout: Any, *, device: str, options: EngineOptions) -> None:
        generator = torch.Generator().manual_seed(0)
        draw = torch.randint(10, options.vocabulary, (options.tokens,), dtype=torch.int32, generator=generator)
        self._token_ids, self._log_probs = array("i", draw.tolist()), array("f", [-1.0] * options.tokens)
        self._version = 0

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        outputs = []
        for position, request in enumerate(requests):
            samples = []
            for sample in range(request.sampling.n):
                token_ids = self._token_ids[:]
                token_ids[0] = 10 + sample  # responses differ
                samples.append(Completion(token_ids, self._log_probs[:], "length", self._version))
            if on_finished is not None:
                on_finished(position, samples)
            outputs.append(samples)
        return outputs

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int, *, verify: bool = False) -> None:
        for _ in weights:
            pass
        self._version = version

    def abort(self, request_ids: Sequence[str]) -> None: ...

    def sleep(self, *, keep_weights: bool = False) -> None: ...

    def wake(self, *, kv_cache: bool = True) -> None: ...

    def health(self) -> None: ...

    def close(self) -> None: ...


class Strategy:
    """Gives numbers of the right shapes."""

    def __init__(self, spec: Any) -> None:
        distributed = torch.distributed.is_initialized()
        self.data_parallel_rank = torch.distributed.get_rank() if distributed else 0
        self.data_parallel_size = torch.distributed.get_world_size() if distributed else 1

    def forward(self, batch: Experience, wanted: Collection[Any]) -> TokenOutputs:
        shape = batch.response_mask.shape
        outputs: dict[str, Any] = {name: torch.full(shape, -1.0) for name in wanted}
        return TokenOutputs(**outputs)

    def update(self, mini_batch: Experience, objective: Any) -> dict[str, Mean]:
        return {"grad_norm": Mean(1.0, 1.0), "lr": Mean(1.0, 1.0)}

    def shape(self) -> ModelShape:
        return ModelShape(1, 1, 1)

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        yield "one", torch.zeros(1)

    def offload(self) -> None: ...

    def onload(self) -> None: ...

    def save(self, folder: Path) -> Callable[[], None] | None:
        return None

    def load(self, folder: Path) -> None: ...

    def export(self, folder: Path) -> None: ...


def even(response: str, ground_truth: str, data_source: str, extra_info: Any) -> float:
    """A reward that differs within a group."""
    return float(len(response) % 2 + (response[:1] > "m"))


@hookimpl
def register_rollout_backends(register: Any) -> None:
    register("stub", Engine, options=EngineOptions, summary="answers at once")


@hookimpl
def register_training_strategies(register: Any) -> None:
    register("stub", Strategy, distributed=True, summary="computes nothing")


CLOCKS: list[tuple[float, float]] = []


BUSY = [0.0, 0.0]
"""wall and processor seconds of the calls on the shard in this process"""


def watch() -> None:
    """Count the time of calls on a shard in this process, and of the reading of outputs."""
    from corerl_ray.kept import KeptOutputs
    from corerl_torch.shards.worker import Shard

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            began, before = time.perf_counter(), time.thread_time()
            try:
                return method(*args, **keywords)
            finally:
                BUSY[0] += time.perf_counter() - began
                BUSY[1] += time.thread_time() - before

        return call

    for name in ("take_part", "put", "estimate_part", "measure_part", "rows", "correct", "end"):
        setattr(Shard, name, timed(getattr(Shard, name)))
    KeptOutputs.value = timed(KeptOutputs.value)  # type: ignore[method-assign]


@hookimpl
def step_metrics() -> None:
    """The clocks of a process with rows of a step."""
    if not BUSY[0]:
        watch()
        BUSY[0] = 1e-9
    with Path(os.environ["CORERL_BENCHMARK_CLOCKS"]).open("a") as clocks:
        clocks.write(f"{os.getpid()} {time.process_time()} {BUSY[0]} {BUSY[1]}\n")


@hookimpl
def step_ended(run: Any, step: int) -> None:
    CLOCKS.append((time.process_time(), time.perf_counter()))
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    (run.folder / f"controller_{step}.txt").write_text(
        f"{CLOCKS[-1][0]} {CLOCKS[-1][1]} {lines['RssAnon'].split()[0]} {lines['VmHWM'].split()[0]}\n"
    )
