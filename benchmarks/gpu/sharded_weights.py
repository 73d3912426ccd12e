"""Weights from two ranks of a trainer to the two ranks of an engine on the same two GPUs: bytes, seconds, bare NCCL.

    python benchmarks/gpu/sharded_weights.py --shapes qwen2.5-1.5b                  # two GPUs, about 60 s
    python benchmarks/gpu/sharded_weights.py --ranks 1 --trainers tp --ways exchange,broadcast    # two GPUs, 30 s
    python benchmarks/gpu/sharded_weights.py --ranks 1 --trainers tp --ways exchange --before exchange    # 40 s

Layouts of the trainer: ``fsdp`` divides the rows of every weight, ``tp`` as tensor parallel does; values are float32,
and sent in bfloat16. The engine has as many ranks under tensor parallel, with fused projections, each in a process of
its own (engine_ranks.py).

On the same GPUs, ``pieces`` is the plan from sharded to sharded; ``whole`` gathers every weight on each rank, and the
engine's ranks take their parts out of the first GPU's copy. On GPUs of its own (``--ranks`` for the trainer, as many
for the engine), the engine gets pieces by ``exchange``, and whole weights by ``broadcast``.

``bytes / model``: values that engine ranks get, over the bytes of the model; ``crossing`` is the part that leaves its
GPU. ``seconds`` is what the controller waits, calls of Ray included: the median of ``--repeat``. ``bare GB/s`` is one
NCCL broadcast of the model's bytes between two GPUs, and ``of bare`` the rate of whole updates over that.
``--before`` measures these ways a second time as they were before rounds were in flight together: rounds of at most
two thirds of a bucket, one buffer of the trainer, a round requested after the last one has arrived, and an engine asked
to load a round after it has loaded the last one. ``--trace`` prints the kernels of one more update by ``exchange`` in
the first trainer's rank and in the rollout worker, each in milliseconds since its call began, and the engine's loads.

``same``: every parameter of the engine has the bits of the trainer's rounded weights. Without GPUs the same code runs
over gloo.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from engine_ranks import SENT, Engine, EngineRank, divided
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from weights import DEVICE, shapes, synchronize

from corerl.contracts.config import RuntimeConfig
from corerl.contracts.dispatch import dispatch
from corerl.contracts.pieces import Box, Piece
from corerl.contracts.runtimes import Pool, Role
from corerl_engines.weights import DeviceBucket, HostBucket, SharedBucket, described_slot
from corerl_ray.calls import Call
from corerl_ray.host import WorkerHost
from corerl_ray.launch import launch
from corerl_ray.options import RayOptions
from corerl_ray.transports import exchange
from corerl_torch.weights import plan as plans
from corerl_torch.weights.buckets import Slot, place
from corerl_torch.weights.held import local_boxes
from corerl_torch.weights.pieces import Round

RANKS = 2
"""of the trainer, and of the engine"""
BUCKET = 2**29
"""bytes that hold the largest weight"""


class Actor:
    """A rank of a trainer with the weights of a published shape, random numbers."""

    def __init__(self, shape: str, layout: str, pieces: bool, before: bool) -> None:
        if before:
            exchange.BUFFERS = 1
        if not dist.is_initialized():
            dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
        mesh, self.pieces = init_device_mesh(DEVICE, (RANKS,)), pieces
        generator = torch.Generator(DEVICE).manual_seed(0)
        self.tensors: dict[str, DTensor] = {}
        for name, size in shapes(shape):
            dim = 0 if layout == "fsdp" else divided(name, size, RANKS)
            whole = torch.empty(size, device=DEVICE).normal_(generator=generator)  # the same numbers on both ranks
            chunks = whole.chunk(RANKS, dim or 0)
            local = whole if dim is None else chunks[dist.get_rank()].clone()
            placement = Replicate() if dim is None else Shard(dim)
            self.tensors[name] = DTensor.from_local(local, mesh, [placement], run_check=False)
            del whole, chunks

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.tensors.items():
            sent: Any = tensor.to(SENT)
            yield name, sent.full_tensor()

    @contextmanager
    def sharded_weights(self, dtype: torch.dtype | None = None) -> Iterator[list[Piece] | None]:
        yield (
            [
                Piece(name, tuple(tensor.shape), box, values, SENT)
                for name, tensor in self.tensors.items()
                for box, values in local_boxes(tensor)
            ]
            if self.pieces
            else None
        )

    @dispatch("all")
    def scale(self) -> None:
        """New weights."""
        for tensor in self.tensors.values():
            tensor.to_local().mul_(1.01)


class Rollout:
    """A rollout worker with an engine."""

    def __init__(self, shape: str, before: bool) -> None:
        self.engine, self.before = Engine(shape, RANKS), before
        self.bucket: SharedBucket | None = None
        if before:
            kind: Any = exchange.End
            kind.receive = receive_in_turn

    def on_backend(self, function: Callable[[Any], Any]) -> Any:
        return function(self)

    def needs(self, weights: Sequence[tuple[str, Sequence[int], str]]) -> list[dict[str, list[Box]]]:
        return self.engine.ask("needs", [(weights,)] * RANKS)

    def expect(self, plans: Sequence[Mapping[str, Any]]) -> None:
        self.engine.ask("expect", [(plan,) for plan in plans])

    def update_pieces(self, rounds: Iterable[Round], version: int, *, verify: bool = False) -> None:
        self.engine.ask("begin", [()] * RANKS)
        self.loads: list[float] = []
        with ThreadPoolExecutor(1) as frees:
            under_way: list[Future[None]] = []
            for each in rounds:
                self.loads.append(time.perf_counter())
                self.engine.tell("take", [(each.number, place, verify) for place in each.places])
                if len(under_way) > 0:
                    under_way.pop().result()
                under_way.append(frees.submit(self._taken, each))
                if self.before:
                    under_way.pop().result()
            for last in under_way:
                last.result()

    def _taken(self, each: Round) -> None:
        assert not any(self.engine.answers("take"))
        self.loads.append(-time.perf_counter())
        each.done()

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int, *, verify: bool = False) -> None:
        slots: list[Slot] = []
        for slot, tensor in place(weights, BUCKET, SENT):
            if self.bucket is None:
                self.bucket = DeviceBucket(BUCKET, tensor.device) if tensor.is_cuda else HostBucket(BUCKET)
            if slots and slot.offset == 0:
                self._load(slots)
            self.bucket.write(slot, tensor)
            slots.append(slot)
        self._load(slots)

    def _load(self, slots: list[Slot]) -> None:
        assert self.bucket is not None
        self.bucket.arrive()
        bucket = {"source": self.bucket.source, "tensors": [described_slot(slot) for slot in slots]}
        self.engine.ask("read", [(bucket,)] * RANKS)
        slots.clear()

    @dispatch("rank_zero")
    def sums(self) -> list[int]:
        """The digest of every parameter of every rank."""
        return [each for own in self.engine.ask("sums", [()] * RANKS) for each in own]


def receive_in_turn(end: exchange.End, timeout: float) -> None:
    """In place of ``End.receive``: the next round is requested when the last one is here."""
    assert end.shared is not None and end.channel is not None
    if end.filling.device.type == "cuda":
        torch.cuda.set_device(end.filling.device)
    for number, (given, taken, _) in enumerate(end.filling.own.rounds):
        assert end.free.acquire(timeout=timeout)
        into = end.shared.data[end.filling.own.half * (number % 2) :][: sum(taken)]
        end.channel.wait(end.start(into, into.new_empty(0), taken, given))
        synchronize()
        end.arriving.put(lambda: None)


@contextmanager
def rounds_of(bucket_mb: int, before: bool) -> Iterator[None]:
    """Within, plans have the rounds of before."""
    module: Any = plans
    make, most = module.make, module._Layout.most

    def fewer(*given: Any) -> plans.Plan:
        module._Layout.most = lambda own, weight, moves: most(own, weight, moves) if own.moves else 0
        found: plans.Plan = make(*given[:-1], bucket_mb * 2**20 // 3)
        return found

    module.make = fewer if before else make
    try:
        yield
    finally:
        module.make, module._Layout.most = make, most


def traced(function: Callable[..., Any], folder: str) -> Callable[..., Any]:
    """The function of a host, which writes its kernels into a file of its name."""

    def run(host: WorkerHost, *given: Any) -> Any:
        activities = [getattr(torch.profiler.ProfilerActivity, DEVICE.upper())]
        with torch.profiler.profile(activities=activities) as profiler:
            began = time.perf_counter()
            result = function(host, *given)
            synchronize()
            seconds = time.perf_counter() - began
        kernels = [each for each in profiler.events() if each.device_type.name == "CUDA"]
        first = min((each.time_range.start for each in kernels), default=0.0)
        lines = [f"{function.__name__}: {seconds * 1e3:.2f} ms; kernels since the first, and their ms"]
        for each in sorted(kernels, key=lambda one: one.time_range.start):
            start, length = (each.time_range.start - first) / 1e3, each.time_range.elapsed_us() / 1e3
            lines += [f"{start:8.2f} {length:7.3f} {each.name[:80]}"] if length > 0.02 else []
        loads = getattr(host.worker, "loads", ())
        lines += [f"{'asks' if at > 0 else 'has loaded'} at {(abs(at) - began) * 1e3:.2f} ms" for at in loads]
        (Path(folder) / function.__name__).write_text("\n".join(lines))
        return result

    return run


def bare(host: WorkerHost, size: int, repeat: int) -> float:
    """In each actor worker: the median time of a broadcast of ``size`` bytes."""
    data = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    times = []
    for _ in range(repeat + 1):
        synchronize()
        started = time.perf_counter()
        dist.broadcast(data, 0)
        synchronize()
        times.append(time.perf_counter() - started)
    del data
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
    return statistics.median(times[1:])


def bare_apart(host: WorkerHost, size: int, repeat: int) -> float:
    """As :func:`bare`, by the group of ``exchange`` with one rank in each process."""
    end = host.transport.ends[0]
    data = torch.empty(size, dtype=torch.uint8, device=end.filling.device)
    times = []
    for _ in range(repeat + 1):
        synchronize()
        started = time.perf_counter()
        end.channel.group.broadcast([data], dist.BroadcastOptions()).wait()
        synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def true_sums(host: WorkerHost, shape: str) -> list[int]:
    """In each actor worker: what :meth:`Rollout.sums` must be."""
    weights = dict(host.worker.weights())
    if dist.get_rank():
        return []
    found = []
    for number in range(RANKS):
        rank = EngineRank(shape, number, RANKS, 0)
        rank.load(weights.items())
        found += rank.sums()
    return found


def measure(shape: str, layout: str, way: str, arguments: argparse.Namespace, before: bool) -> dict[str, Any]:
    """One model, layout and way, in workers of their own."""
    gpus = RANKS if DEVICE == "cuda" else 0
    apart = way in ("exchange", "broadcast")
    options = RayOptions(
        weights_transport=way if apart else {"pieces": "sharded", "whole": "ipc"}[way],
        weights_bucket_mb=arguments.bucket_mb,
        workers=None if gpus else RANKS,
        rollout_workers=1 if apart and not gpus else None,
    )
    runtime: Any = launch(RuntimeConfig(name="ray", n_gpus_per_node=gpus), options=options)
    try:
        pool = Pool(1, RANKS) if apart and gpus else None
        roles = [
            Role("actor", "actor.strategy", "benchmark", distributed=True),
            Role("rollout", "rollout.name", "benchmark", distributed=True, gpus=RANKS, pool=pool),
        ]
        runtime.reserve(roles)
        actor = runtime.spawn(roles[0], Actor, shape, layout, way in ("pieces", "exchange"), before)
        rollout = runtime.spawn(roles[1], Rollout, shape, before)
        size = SENT.itemsize * sum(each.numel() for _, each in shapes(shape))
        started = time.perf_counter()
        with rounds_of(arguments.bucket_mb, before):
            runtime.send_weights(actor, rollout, 0)
        named = f"{way}, before" if before else way
        row: dict[str, Any] = {"shape": shape, "trainer": layout, "way": named, "GB": size / 1e9}
        row["first s"] = time.perf_counter() - started
        if (plan := getattr(runtime._transport, "plan", None)) is not None:
            engines = len(plan.ports) // RANKS  # without GPUs, each place of shared ones has an engine
            row |= {"bytes / model": plan.values / size / engines, "crossing": plan.crossing / size / engines}
            row["rounds"] = len(plan.rounds)
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for index in range(2 * arguments.repeat):
            actor.scale()
            started = time.perf_counter()
            runtime.send_weights(actor, rollout, index + 1, verify=index % 2 == 1)
            seconds[index % 2 == 1].append(time.perf_counter() - started)
        row |= {"seconds": statistics.median(seconds[False]), "verified s": statistics.median(seconds[True])}
        row["GB/s"] = size / 1e9 / row["seconds"]

        if arguments.trace and way == "exchange" and not before:
            module: Any = exchange
            own = module.send, module.receive
            with tempfile.TemporaryDirectory() as folder:
                module.send, module.receive = (traced(each, folder) for each in own)
                for index in range(2):  # the first one starts the profiler
                    runtime.send_weights(actor, rollout, 2 * arguments.repeat + index + 1)
                module.send, module.receive = own
                for file in sorted(Path(folder).iterdir()):
                    print(file.read_text(), flush=True)

        def ask(members: Sequence[Any], function: Callable[..., Any], *own: Any) -> list[Any]:
            calls = [Call(member, member.host.apply.remote(function, *own)) for member in members]
            return list(runtime.waiter.wait(calls, time.monotonic() + 300, function.__name__))

        measured = []
        if not apart and RANKS > 1:
            measured = ask(actor.members, bare, size, arguments.repeat)
        elif way == "exchange" and RANKS == 1:
            measured = ask([*actor.members, *rollout.members], bare_apart, size, arguments.repeat)
        if measured:
            row["bare GB/s"] = size / 1e9 / max(measured)
            row["of bare"] = row["GB/s"] / row["bare GB/s"]
        row["same"] = ask(actor.members, true_sums, shape)[0] == rollout.sums()
    finally:
        runtime.close()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="qwen2.5-1.5b" if DEVICE == "cuda" else "tiny")
    parser.add_argument("--trainers", default="fsdp,tp")
    parser.add_argument("--ways", default="pieces,whole")
    parser.add_argument("--before", default="", help="of these ways, the former one too")
    parser.add_argument("--trace", action="store_true", help="the kernels of one more update, too")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--bucket-mb", type=int, default=RayOptions().weights_bucket_mb)
    parser.add_argument("--ranks", type=int, default=RANKS)
    arguments = parser.parse_args()
    globals()["RANKS"] = arguments.ranks
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    ways = arguments.ways.split(",")
    needed = RANKS * (2 if {"exchange", "broadcast"} & {*ways} else 1)
    if DEVICE == "cuda" and torch.cuda.device_count() < needed:
        raise SystemExit(f"{needed} GPUs are needed")
    columns: dict[str, None] = {}
    rows = []
    for shape in arguments.shapes.split(","):
        for layout in arguments.trainers.split(","):
            for way in ways:
                for before in (True, False) if way in arguments.before.split(",") else (False,):
                    rows.append(measure(shape, layout, way, arguments, before))
                    columns |= dict.fromkeys(rows[-1])
                    print(json.dumps(rows[-1]), flush=True)
    where = f"{needed} {torch.cuda.get_device_name()}" if DEVICE == "cuda" else "CPU, gloo"
    table = Table(*columns, title=f"{where}, torch {torch.__version__}, weights_bucket_mb={arguments.bucket_mb}")
    for row in rows:
        cells = (row.get(name, "") for name in columns)
        table.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells))
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
