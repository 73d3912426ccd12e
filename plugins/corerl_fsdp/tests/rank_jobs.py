"""What the ranks of a test do, and what a test does beside them with ``torch`` on one device."""

import dataclasses
import os
from pathlib import Path

import torch
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

from corerl.batch.experience import collate
from corerl.config.schema import ModelConfig, OptimConfig
from corerl.errors import CoreRLError
from corerl.objective import ObjectiveOutput, loss_weights
from corerl.registry.losses import Mean
from corerl.registry.training_strategies import MicroBatching, StrategySpec
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions, TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy

MODELS = (modeling_llama, modeling_qwen2, modeling_qwen3)
"""imported here, once for all ranks: they are forked from a process that has this module"""

PROMPTS = (3, 7, 1, 5, 9, 2, 4)
RESPONSES = (6, 2, 9, 4, 1, 12, 7)


def batch(rows=7, seed=0):
    """Rows of random tokens of uneven lengths, with the loss weights of them all."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(lengths):
        return [torch.randint(50, (length,), generator=generator).tolist() for length in lengths[:rows]]

    experience = collate(tokens(PROMPTS), tokens(RESPONSES), list(range(rows)))
    experience.loss_weights = loss_weights(experience.response_mask, "seq-mean-token-mean")
    experience.returns = torch.randn(experience.response_mask.shape, generator=generator)
    return experience


class AllOutputs:
    """A loss with every output that a language model gives, or squared errors of a critic's values."""

    def __init__(self, head="lm", bad_row_length=None, error=None):
        self.head, self.bad_row_length, self.error = head, bad_row_length, error
        names = {"values"} if head == "value" else {"log_probs", "entropy", "sum_pi_squared"}
        self.wanted = frozenset(names)

    def __call__(self, outputs, micro_batch):
        if self.error:
            raise ValueError(self.error)
        if self.head == "value":
            terms = (outputs.values - micro_batch.returns) ** 2
        else:
            terms = -outputs.log_probs + 0.3 * outputs.entropy - 2 * outputs.sum_pi_squared
        if self.bad_row_length:
            bad = (micro_batch.response_lengths == self.bad_row_length)[:, None] & micro_batch.response_mask
            terms = terms * torch.where(bad, float("nan"), 1.0)
        loss = (terms * micro_batch.loss_weights.float()).sum()
        length = Mean(micro_batch.response_lengths.sum(), len(micro_batch))
        return ObjectiveOutput(loss, {"loss": loss.detach()}, {"length": length})


def build(job):
    """The strategy that a job describes; ``torch`` where it has no options of ``fsdp``."""
    device = job.get("device", "cpu")
    model = ModelConfig(path=job["model"], **{"load_format": "dummy", "dtype": "fp32", **job.get("config", {})})
    optim = OptimConfig(lr=1e-2, weight_decay=0.1, eps=1e-3, lr_scheduler_type="linear")
    cut = MicroBatching(**job.get("cut", {"max_sequences": 100}))
    head = job.get("head", "lm")
    clip = job.get("grad_clip", 1e6)
    spec = StrategySpec(model, device, cut, optim, total_steps=10, grad_clip=clip, temperature=0.7, head=head)
    if job.get("frozen"):
        spec = dataclasses.replace(spec, optim=None)
    if "fsdp" in job:
        return FsdpStrategy(spec, FsdpOptions(**job["fsdp"]))
    return SingleDeviceStrategy(spec, TorchOptions(logits_chunk_size=None))


def share(experience, strategy):
    """The rows of this rank, round-robin."""
    return experience.select(torch.arange(strategy.data_parallel_rank, len(experience), strategy.data_parallel_size))


def record_gradient(strategy, seen):
    """Note the full gradient that a step is taken along."""
    take_step = strategy._step

    def step(*arguments):
        for name, parameter in strategy.model.named_parameters():
            gradient = parameter.grad
            if gradient is None:
                continue
            whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
            seen[name] = whole.cpu().clone()
        return take_step(*arguments)

    strategy._step = step


def weights(strategy):
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in strategy.weights()}


def job_agree(job):
    """Forward, one update with its gradient, weights."""
    strategy = build(job)
    experience = share(batch(job.get("rows", 7)), strategy)
    objective = AllOutputs(strategy.spec.head)
    if job.get("warm"):
        strategy.update(experience, objective)
    gradient = {}
    record_gradient(strategy, gradient)
    outputs = strategy.forward(experience, objective.wanted)
    metrics = strategy.update(experience, objective)
    after = strategy.forward(experience, objective.wanted)
    return {
        "before": {name: value for name, value in outputs._asdict().items() if value is not None},
        "after": {name: value for name, value in after._asdict().items() if value is not None},
        "metrics": {name: mean.value for name, mean in metrics.items()},
        "gradient": gradient,
        "weights": weights(strategy),
        "place": (strategy.data_parallel_rank, strategy.data_parallel_size),
    }


def job_train(job):
    """Updates on the batches of some seeds, after loading and before saving."""
    strategy = build(job)
    if "load" in job:
        strategy.load(Path(job["load"]))
    for seed in job["seeds"]:
        strategy.update(share(batch(seed=seed), strategy), AllOutputs(strategy.spec.head))
    if "save" in job:
        strategy.save(Path(job["save"]))
    if "export" in job:
        strategy.export(Path(job["export"]))
    return {"weights": weights(strategy)}


def job_nonfinite(job):
    """The local rows that an update names, and whether the weights stayed."""
    strategy = build(job)
    before = weights(strategy)
    try:
        strategy.update(share(batch(), strategy), AllOutputs(bad_row_length=job["bad_row_length"]))
    except CoreRLError as error:
        named = list(error.rows)
    same = all(torch.equal(tensor, before[name]) for name, tensor in weights(strategy).items())
    strategy.update(share(batch(), strategy), AllOutputs())
    return {"rows": named, "same": same}


def job_raise(job):
    """One rank's objective raises; the others update."""
    strategy = build(job)
    error = "out of order" if strategy.data_parallel_rank == job["rank"] else None
    strategy.update(share(batch(), strategy), AllOutputs(error=error))


def job_build(job):
    build(job)


def run(job):
    """A job's result, or the error that it ended with."""
    try:
        return globals()[f"job_{job['kind']}"](job)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def serve(connection, environment):
    """One rank: do the jobs that come."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    while True:
        connection.send(run(connection.recv()))
