"""Seconds of training, handover and weights, and of an engine's steps, from the rates of a table."""

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from corerl.batch.cuts import mini_batches
from corerl.contracts.training_strategies import TOKENS, MicroBatching
from corerl_check import EngineRank, ModelSize
from corerl_simulate.engine import EngineSpeed
from corerl_simulate.job import EnginePool, Job
from corerl_simulate.table import Links, Table
from corerl_torch.balance import balance
from corerl_torch.micro_batches import micro_batches

IN_PARTS = ("exchange", "sharded")
"""transports of ``ray`` that send each rank of an engine its own parts"""

BYTES_PER_LOGIT = 8
"""of one pass over the logits"""
MOST_SHARDS = 16
"""processes that divide the rows of a step, at most (``rollout.num_workers``)"""


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a step.

    Attributes:
        prompts, responses: (B,) int64 tokens.
        groups: (B,) int64.
    """

    prompts: Tensor
    responses: Tensor
    groups: Tensor

    def select(self, rows: Tensor) -> "Rows":
        return Rows(self.prompts[rows], self.responses[rows], self.groups[rows])


@dataclasses.dataclass(frozen=True)
class Spent:
    """Seconds of a part of a step: of the slowest rank, and the mean over ranks without waits for others."""

    seconds: float
    busy: float

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.seconds + other.seconds, self.busy + other.busy)


def matrices(size: ModelSize) -> tuple[float, float]:
    """Parameters that each token multiplies in the layers, and in the output layer."""
    attention = size.hidden * (size.heads + 2 * size.key_value_heads) * size.head_size
    attention += size.heads * size.head_size * size.hidden
    return size.layers * (attention + 3.0 * size.hidden * size.intermediate), float(size.vocabulary) * size.hidden


def engine_speed(size: ModelSize, job: Job, table: Table) -> EngineSpeed:
    """Of one engine of ``job``; ``sharing`` engines on one GPU lengthen each other's steps.

    Running samples are divided evenly among data parallel ranks, which go from layer to layer together.
    """
    engines, gpu = job.engines, table.gpu
    rates, tensor, data = table.engine(engines.backend), engines.tensor, engines.data
    layers, output = matrices(size)
    factor = 1 + rates.sharing * (engines.beside - 1)
    flops = 2 * (layers + output) / (tensor * data)
    heads = max(1, min(tensor, size.key_value_heads))
    weights = (size.parameters - size.in_experts + size.in_experts / data) * size.bytes / tensor
    passes = size.vocabulary * 4 * BYTES_PER_LOGIT / tensor / (gpu.terabytes * 1e12)
    slowest = 1.0
    if engines.stages > 1:
        slowest = (-(-size.layers // engines.stages) / size.layers * layers + output) / (layers + output)
    exchange, sent = _exchanges(size, engines, table.links)
    reading = flops / (gpu.matrix_tflops * 1e12) + sent
    readers = min(data, job.config.rollout.n)  # ranks with samples of a prompt, each of which reads it
    return EngineSpeed(
        step=factor * (rates.step_ms * 1e-3 + rates.layer_ms * 1e-3 * size.layers),
        sample=factor * (rates.sample_us * 1e-6 + passes) / data,
        token=factor * size.cache_bytes / heads / data / (gpu.terabytes * 1e12),
        least=factor * weights / (gpu.terabytes * 1e12),
        product=factor * flops / (gpu.decode_tflops * 1e12),
        prefill=factor * slowest * reading * readers,
        latency=rates.latency,
        exchange=factor * exchange,
        sent=factor * sent,
        stages=engines.stages,
        slowest=slowest,
    )


def _exchanges(size: ModelSize, engines: EnginePool, links: Links) -> tuple[float, float]:
    """Seconds of a decode step's exchanges between GPUs of an engine, whatever they carry, and for each sample."""
    tensor, data, stages = engines.tensor, engines.data, engines.stages
    hidden = size.hidden * size.bytes
    exchange = sent = 0.0
    if tensor > 1:
        exchange += 2 * size.layers * _latency(links, tensor)
        sent += 2 * size.layers * 2 * hidden * _between_hosts(links, tensor)  # two sums, each there and back
    if data > 1:  # to the experts and back: all hidden states to all ranks, and sums of their outputs
        exchange += 2 * size.layers * _latency(links, tensor * data)
        sent += 2 * size.layers * hidden * (data - 1) / data / (links.inside * 1e9)
        sent += 2 * size.layers * hidden * _between_hosts(links, tensor * data)
    if stages > 1:  # hidden states and residuals
        exchange += (stages - 1) * _latency(links, tensor * data * stages)
        sent += (stages - 1) * 2 * hidden / data / _rate(links, tensor * data * stages)
    return exchange, sent


def _between_hosts(links: Links, gpus: int) -> float:
    """Seconds of a byte of each host's share of a collective, which all GPUs of a host carry together."""
    hosts = -(-gpus // links.gpus_per_node)
    return (hosts - 1) / hosts / (links.between * 1e9 * links.gpus_per_node)


class TrainingCost:
    """Seconds of the calls of one role."""

    def __init__(self, job: Job, role: str, table: Table) -> None:
        self._job, self._table, self._size = job, table, job.sizes[role]
        config, critic = job.config.actor, job.config.critic
        tokens = config.ppo_max_token_len_per_gpu or TOKENS["cpu" if config.device == "cpu" else "cuda"]
        sequences = config.ppo_micro_batch_size_per_gpu
        forward_tokens, forward_sequences = tokens, sequences
        if role == "critic":
            tokens = forward_tokens = critic.ppo_max_token_len_per_gpu or tokens
            sequences = forward_sequences = critic.ppo_micro_batch_size_per_gpu or sequences
        if role == "ref":
            forward_tokens = job.config.ref.log_prob_max_token_len_per_gpu or tokens
            forward_sequences = job.config.ref.log_prob_micro_batch_size_per_gpu or sequences
        dynamic = config.use_dynamic_bsz
        self._limits = {
            False: MicroBatching(forward_tokens, None) if dynamic else MicroBatching(None, forward_sequences),
            True: MicroBatching(tokens, None) if dynamic else MicroBatching(None, sequences),
        }
        self._groups = (critic.ppo_mini_batch_size if role == "critic" else None) or config.ppo_mini_batch_size
        self._epochs = (critic.ppo_epochs if role == "critic" else None) or config.ppo_epochs

    def forward(self, rows: Rows) -> Spent:
        """Log-probs or values of all rows."""
        return self._passed(rows, is_update=False) + self._call(self._table.training.ray_call)

    def update(self, rows: Rows) -> Spent:
        """All epochs and mini-batches."""
        spent = self._call(self._table.training.ray_update)
        for part in mini_batches(rows.groups, self._groups):
            each = self._passed(rows.select(part), is_update=True) + self._optimizer()
            spent += Spent(each.seconds * self._epochs, each.busy * self._epochs)
        return spent

    def about(self, rows: int, prompt: float, response: float, *, is_update: bool) -> float:
        """Seconds for so many equal rows, without balancing them: for a first choice among layouts."""
        trainers, limit = self._job.trainers, self._limits[is_update]
        own = max(1, round(rows / trainers.copies))
        length = round(response + prompt / (self._job.config.rollout.n if trainers.shares_prefixes else 1))
        lengths, responses = torch.full((own,), length), torch.full((own,), round(response))
        if limit.max_tokens is not None:
            count = max(1, math.ceil(own * length / (limit.max_tokens * trainers.context)))
        else:
            count = math.ceil(own / (limit.max_sequences or 1))
        each = self._micro_batch(lengths, responses, is_update=is_update) / count
        whole = count * max(each, self._gathering(is_update=is_update))
        whole *= 1 + (trainers.pipeline - 1) / (trainers.pieces * count)
        return whole + (self._optimizer().seconds if is_update else 0.0)

    def _call(self, ray: float) -> Spent:
        return Spent(ray if self._job.is_ray else self._table.training.call, 0.0)

    def _passed(self, rows: Rows, *, is_update: bool) -> Spent:
        """One pass over rows that are balanced over the ranks; ranks go from micro-batch to micro-batch together."""
        trainers = self._job.trainers
        lengths = rows.prompts + rows.responses
        if trainers.shares_prefixes:
            _, places, members = torch.unique(rows.groups, return_inverse=True, return_counts=True)
            lengths = rows.responses + rows.prompts // members[places]
        limit = self._limits[is_update]
        if limit.max_tokens is not None:
            limit = dataclasses.replace(limit, max_tokens=limit.max_tokens * trainers.context)
        shares = balance(lengths, trainers.copies, rows.groups if trainers.shares_prefixes else None)
        cuts = [self._cuts(lengths[share], limit, 1) for share in shares]
        most = max(1, *(len(cut) for cut in cuts))
        cuts = [
            cut if len(cut) == most else self._cuts(lengths[share], limit, most)
            for cut, share in zip(cuts, shares, strict=True)
        ]
        seconds = [0.0] * most
        busy = 0.0
        for cut, share in zip(cuts, shares, strict=True):
            for number, members in enumerate(cut):
                chosen = share[members]
                each = self._micro_batch(lengths[chosen], rows.responses[chosen], is_update=is_update)
                seconds[number] = max(seconds[number], each)
                busy += each
        gathering = self._gathering(is_update=is_update)
        whole = sum(max(each, gathering) for each in seconds)
        stages, pieces = trainers.pipeline, trainers.pieces
        whole *= 1 + (stages - 1) / (pieces * most)  # Narayanan et al. 2021, arXiv 2104.04473, section 2.2
        return Spent(whole, busy / trainers.copies)

    def _cuts(self, lengths: Tensor, limit: MicroBatching, at_least: int) -> list[Tensor]:
        """As :func:`corerl_torch.micro_batches.lockstep_micro_batches` cuts the rows of a rank."""
        if limit.max_tokens is not None and at_least == 1 and int(lengths.sum()) <= limit.max_tokens:
            return [torch.arange(len(lengths))] if len(lengths) else []
        return micro_batches(lengths, limit, packed=self._job.trainers.packed, at_least=at_least)

    def _micro_batch(self, lengths: Tensor, responses: Tensor, *, is_update: bool) -> float:
        """Seconds of a rank on these rows."""
        trainers, training, gpu, size = self._job.trainers, self._table.training, self._table.gpu, self._size
        if not len(lengths):
            return 0.0
        tokens = float(lengths.sum()) if trainers.packed else float(lengths.max()) * len(lengths)
        outputs = float(responses.sum())
        layers, output = matrices(size)
        squares = float((lengths * lengths).sum())
        flops = 2 * (layers * tokens + output * outputs)
        flops += 2 * size.layers * size.heads * size.head_size * squares  # two products, half of them masked
        times, passes = (3.0, training.update_passes) if is_update else (1.0, training.forward_passes)
        if is_update:
            times, passes = times + trainers.recomputed, passes + trainers.recomputed * training.forward_passes
        width = 10 * size.hidden + 3 * size.intermediate
        moved = size.bytes * size.layers * width * tokens + BYTES_PER_LOGIT * size.vocabulary * outputs
        seconds = times * flops / (gpu.matrix_tflops * 1e12)
        seconds += passes * (1 if trainers.compiled else training.eager) * moved / (gpu.terabytes * 1e12)
        left: float = training.tensor_parallel ** math.log2(trainers.tensor)
        return seconds / (trainers.tensor * left * trainers.pipeline * trainers.context)

    def _gathering(self, *, is_update: bool) -> float:
        """Seconds of the collectives of a micro-batch, which overlap its kernels."""
        trainers, links, size = self._job.trainers, self._table.links, self._size
        if not trainers.gathers or trainers.ranks == 1:
            return 0.0
        times = 2 if is_update else 1
        sent = size.parameters * size.bytes * (trainers.ranks - 1) / trainers.ranks
        return times * (sent / _rate(links, trainers.ranks) + size.layers * _latency(links, trainers.ranks))

    def _optimizer(self) -> Spent:
        """The sum of gradients over ranks, and the step of AdamW."""
        trainers, links, size = self._job.trainers, self._table.links, self._size
        own = size.trained / (trainers.tensor * trainers.pipeline)
        step = own / (trainers.ranks / (trainers.tensor * trainers.pipeline))
        seconds = step * self._table.training.optimizer_bytes / (self._table.gpu.terabytes * 1e12)
        if trainers.ranks == 1:
            return Spent(seconds, seconds)
        copies = trainers.ranks // (trainers.tensor * trainers.pipeline)
        sent = 4 * own * (copies - 1) / copies
        if not trainers.gathers:
            sent += size.bytes * own * (copies - 1) / copies
        summing = sent / _rate(links, trainers.ranks) + size.layers * _latency(links, trainers.ranks)
        return Spent(seconds + (summing if copies > 1 else 0.0), seconds)


def handover(job: Job, table: Table) -> float:
    """Seconds in which engines give their memory to training; 0 if both keep their own."""
    exchange = table.exchange
    if job.engines.gpus or job.config.trainer.max_staleness or job.config.rollout.free_cache_engine is False:
        return 0.0
    ranks = min(job.trainers.ranks, table.links.gpus_per_node) if job.is_ray else 0
    return exchange.handover + exchange.handover_rank * ranks


def weights(job: Job, table: Table) -> float:
    """Seconds of an update of the engines' weights, with their wake."""
    exchange, size = table.exchange, job.sizes["actor"]
    sent = size.parameters * size.bytes / 1e9
    again = sent / exchange.nccl_gb if job.engines.size > table.links.gpus_per_node else 0.0  # among an engine's hosts
    if job.config.runtime.options.get("weights_transport") in IN_PARTS:
        rank = EngineRank.of(size, job.config.rollout)
        sent, again = (rank.in_layers + rank.beside) * size.bytes / 1e9, 0.0
    if job.engines.gpus:
        hops = max(1.0, math.log2(job.engines.gpus))
        return exchange.weights + sent / exchange.nccl_gb * (1 + 0.1 * (hops - 1)) + again
    wake = exchange.wake if handover(job, table) else 0.0
    ranks = exchange.weights_rank * math.log2(job.trainers.ranks) if job.is_ray else 0.0
    return exchange.weights + wake + ranks + sent / exchange.weights_gb + again


def rest(job: Job, table: Table, tokens: int) -> float:
    """Seconds of a step outside of all parts: of the controller, or of the processes that divide its rows."""
    exchange, config = table.exchange, job.config
    if job.is_ray and config.rollout.num_workers:
        tokens //= min(config.rollout.num_workers, config.data.train_batch_size, MOST_SHARDS)
    beside = table.overlap.rest if config.trainer.max_staleness else 0.0
    return (exchange.ray_rest if job.is_ray else exchange.rest) + exchange.rest_us * 1e-6 * tokens + beside


def imbalance(parts: Sequence[Spent]) -> float:
    """Share of training in which a mean rank waits for others."""
    whole = sum(part.seconds for part in parts)
    return 1 - sum(part.busy for part in parts) / whole if whole else 0.0


def _rate(links: Links, ranks: int) -> float:
    """Bytes a second of a collective of each rank."""
    return 1e9 * (links.inside if ranks <= links.gpus_per_node else links.between)


def _latency(links: Links, ranks: int) -> float:
    return 1e-6 * (links.latency_us + links.hop_us * math.log2(max(2, ranks)))
