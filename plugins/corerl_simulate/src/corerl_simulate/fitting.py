"""The table of rates with which the costs of the simulation equal measurements as closely as they can."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from corerl_simulate import costs
from corerl_simulate.calibration import Decoded, Measured
from corerl_simulate.costs import TrainingCost
from corerl_simulate.job import Job
from corerl_simulate.table import Engine, Table

Given = TypeVar("Given")

SMALLEST = 1e-9
"""seconds of a call, at least, by which a rate is divided"""


@dataclass(frozen=True)
class Fitted:
    """The table, and what it says of the measured calls.

    Attributes:
        calls: words for a call, its measured seconds, those by the table.
    """

    table: Table
    calls: Sequence[tuple[str, float, float]]


def fit(job: Job, measured: Measured, start: Table, name: str) -> Fitted:
    """
    Args:
        start: rates that are not measured: of links, of engines beside training, of the controller.
    """
    backend = job.engines.backend.removeprefix("forced_")
    gpu = replace(
        start.gpu,
        memory_gib=measured.memory_gib,
        matrix_tflops=measured.matrix_tflops,
        decode_tflops=measured.matrix_tflops,
        terabytes=measured.terabytes,
    )
    old = start.engines.get(backend, Engine())
    engine = replace(
        old,
        step_ms=0.0,
        layer_ms=0.0,
        sample_us=0.0,
        latency=0.0,
        most=max(1, measured.most // (job.engines.count * job.engines.data)) if measured.most else 1_000_000,
        reports=measured.most is not None,
        sharing=old.sharing if job.engines.beside > 1 else 0.0,
    )
    eager = start.training.eager if job.trainers.compiled else 1.0
    training = replace(start.training, eager=eager, forward_passes=0, update_passes=0, optimizer_bytes=0)
    training = replace(training, call=0, ray_call=0, ray_update=0)
    table = replace(start, name=name, gpu=gpu, training=training, engines={backend: engine})
    table = _with_training(job, measured, table)
    table = _with_engine(job, measured, table, backend)
    table = _with_exchange(job, measured, table)
    forward, update = _forward(job, table), _update(job, table)
    calls = [
        *((f"log-probs of {len(rows.prompts)} rows", took, forward(rows)) for rows, took in measured.forward),
        *((f"update with {len(rows.prompts)} rows", took, update(rows)) for rows, took in measured.update),
        *((_words(each), each.seconds, _decode(job, table)(each)) for each in measured.decoded),
    ]
    return Fitted(table, calls)


def nonnegative(columns: Sequence[Sequence[float]], target: Sequence[float]) -> list[float]:
    """The x >= 0 with the smallest squared relative error of sum_k x_k · columns[k]; few columns, each subset is tried.

    >>> [round(x, 6) for x in nonnegative([[1, 1], [1, 2]], [3, 5])]
    [1.0, 2.0]
    >>> [round(x, 6) for x in nonnegative([[1, 1], [1, 2]], [5, 4])]
    [4.390244, 0.0]
    """
    scale = np.maximum(np.array(target), SMALLEST)
    matrix = (np.array(columns) / scale).T
    wanted = np.array(target) / scale
    best, error = np.zeros(len(columns)), float(wanted @ wanted)
    for chosen in itertools.product((False, True), repeat=len(columns)):
        if not any(chosen):
            continue
        found: npt.NDArray[np.float64] = np.zeros(len(columns))
        found[list(chosen)] = np.linalg.lstsq(matrix[:, list(chosen)], wanted, rcond=None)[0]
        left = matrix @ found - wanted
        if (found >= 0).all() and left @ left < error:
            best, error = found, float(left @ left)
    solution: list[float] = best.tolist()
    return solution


def _with_training(job: Job, measured: Measured, table: Table) -> Table:
    """Rates of calls, tensors and the optimizer; the matrix rate is raised if a call is faster than it allows."""
    least = [took / max(SMALLEST, _forward(job, table)(rows)) for rows, took in measured.forward]
    least += [took / max(SMALLEST, _update(job, table)(rows)) for rows, took in measured.update]
    if min(least) < 1:
        table = replace(table, gpu=replace(table.gpu, matrix_tflops=table.gpu.matrix_tflops / min(least)))

    def changed(of: Table, **rates: float) -> Table:
        return replace(of, training=replace(of.training, **rates))

    call = "ray_call" if job.is_ray else "call"
    solved = _solved(
        table, [(rows, took) for rows, took in measured.forward], (call, "forward_passes"), changed, job, _forward
    )
    table = changed(table, **solved)
    solved = _solved(table, measured.update, ("update_passes", "optimizer_bytes"), changed, job, _update)
    return changed(table, **solved)


def _with_engine(job: Job, measured: Measured, table: Table, backend: str) -> Table:
    least = min(each.seconds / max(SMALLEST, _decode(job, table)(each)) for each in measured.decoded)
    if least < 1:
        table = replace(table, gpu=replace(table.gpu, decode_tflops=table.gpu.decode_tflops / least))

    def changed(of: Table, **rates: Any) -> Table:
        return replace(of, engines={backend: replace(of.engines[backend], **rates)})

    given = [(each, each.seconds) for each in measured.decoded]
    return changed(table, **_solved(table, given, ("latency", "step_ms", "sample_us"), changed, job, _decode))


def _with_exchange(job: Job, measured: Measured, table: Table) -> Table:
    exchange = replace(
        table.exchange,
        handover=measured.handover,
        handover_rank=0.0,
        wake=measured.wake,
        weights=0.0,
        weights_rank=0.0,
        weights_gb=1.0,
        nccl_gb=1.0,
    )
    one = costs.weights(job, replace(table, exchange=replace(exchange, wake=0.0)))
    rate = one / max(SMALLEST, measured.weights)
    return replace(table, exchange=replace(exchange, weights_gb=rate, nccl_gb=rate))


def _solved(
    table: Table,
    given: Sequence[tuple[Given, float]],
    names: Sequence[str],
    changed: Callable[..., Table],
    job: Job,
    cost: Callable[[Job, Table], Callable[[Given], float]],
) -> dict[str, float]:
    """The rates by which a cost, linear in each of them, is nearest to what was measured."""
    base = [cost(job, changed(table, **dict.fromkeys(names, 0.0)))(each) for each, _ in given]
    columns = []
    for name in names:
        with_one = cost(job, changed(table, **(dict.fromkeys(names, 0.0) | {name: 1.0})))
        columns.append([with_one(each) - without for (each, _), without in zip(given, base, strict=True)])
    target = [max(0.0, took - without) for (_, took), without in zip(given, base, strict=True)]
    return dict(zip(names, nonnegative(columns, target), strict=True))


def _forward(job: Job, table: Table) -> Callable[[costs.Rows], float]:
    return lambda rows: TrainingCost(job, "actor", table).forward(rows).seconds


def _update(job: Job, table: Table) -> Callable[[costs.Rows], float]:
    """Of one pass through the rows."""
    return lambda rows: TrainingCost(job, "actor", table).update(rows).seconds / job.config.actor.ppo_epochs


def _decode(job: Job, table: Table) -> Callable[[Decoded], float]:
    """Seconds of an engine that gets its share of the prompts."""
    speed, count = costs.engine_speed(job.sizes["actor"], job, table), job.engines.count

    def seconds(each: Decoded) -> float:
        prompts = -(-each.prompts // count)
        running = prompts * each.n
        read = prompts * each.prompt * speed.prefill
        return speed.latency + read + speed.decode(running, running * each.prompt, each.tokens)

    return seconds


def _words(each: Decoded) -> str:
    return f"{each.prompts} × {each.n} responses of {each.tokens} tokens"
