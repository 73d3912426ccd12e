"""What the ranks of a test do, and what a test does beside them with ``torch`` on one device."""

import dataclasses
import os
from pathlib import Path

import torch

from corerl.batch.experience import collate
from corerl.config.schema import ModelConfig, OptimConfig
from corerl.errors import CoreRLError
from corerl.models import load_model
from corerl.objective import ObjectiveOutput, loss_weights
from corerl.registry.losses import Mean
from corerl.registry.training_strategies import MicroBatching, StrategySpec
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_megatron import model, parallel
from corerl_megatron.arithmetic import Facts
from corerl_megatron.options import MegatronOptions
from corerl_megatron.strategy import MegatronStrategy
from corerl_megatron.weights import Weights, canonical

PROMPTS = (3, 7, 1, 5, 9, 2, 4)
RESPONSES = (6, 2, 9, 4, 1, 12, 7)


def batch(rows=7, seed=0):
    """Rows of random tokens of uneven lengths, with the loss weights of them all."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(lengths):
        return [torch.randint(51, (length,), generator=generator).tolist() for length in lengths[:rows]]

    experience = collate(tokens(PROMPTS), tokens(RESPONSES), list(range(rows)))
    experience.loss_weights = loss_weights(experience.response_mask, "seq-mean-token-mean")
    experience.returns = torch.randn(experience.response_mask.shape, generator=generator)
    return experience


class AllOutputs:
    """A loss with every number that a language model gives, or squared errors of a critic's values."""

    def __init__(self, head="lm", vocabulary=False, bad_row_length=None):
        self.head, self.vocabulary, self.bad_row_length = head, vocabulary, bad_row_length
        names = {"values"} if head == "value" else {"log_probs", "entropy", "sum_pi_squared"}
        self.wanted = frozenset(names | {"vocabulary_log_probs"} if vocabulary else names)

    def __call__(self, outputs, micro_batch):
        if self.head == "value":
            terms = (outputs.values - micro_batch.returns) ** 2
        else:
            terms = -outputs.log_probs + 0.3 * outputs.entropy - 2 * outputs.sum_pi_squared
        if self.vocabulary:
            terms = terms + outputs.vocabulary_log_probs[..., ::3].square().sum(dim=-1) / 50
        if self.bad_row_length:
            bad = (micro_batch.response_lengths == self.bad_row_length)[:, None] & micro_batch.response_mask
            terms = terms * torch.where(bad, float("nan"), 1.0)
        loss = (terms * micro_batch.loss_weights.float()).sum()
        length = Mean(micro_batch.response_lengths.sum(), len(micro_batch))
        return ObjectiveOutput(loss, {"loss": loss.detach()}, {"length": length})


def build(job, options=None):
    """The strategy that a job describes; ``torch`` without options."""
    device = job.get("device", "cpu")
    model = ModelConfig(path=job["model"], **{"load_format": "dummy", "dtype": "fp32", **job.get("config", {})})
    optim = OptimConfig(lr=1e-2, weight_decay=0.1, eps=1e-3, lr_scheduler_type="linear")
    cut = MicroBatching(**job.get("cut", {"max_sequences": 100}))
    rest = {"total_steps": 10, "grad_clip": job.get("grad_clip", 1e6), "temperature": 0.7, "seed": job.get("seed", 0)}
    spec = StrategySpec(model, device, cut, optim, head=job.get("head", "lm"), **rest)
    if job.get("frozen"):
        spec = dataclasses.replace(spec, optim=None)
    if options is None:
        return SingleDeviceStrategy(spec, TorchOptions(logits_chunk_size=None))
    return MegatronStrategy(spec, MegatronOptions(**{"logits_chunk_size": 3, **options, **job.get("options", {})}))


def share(experience, strategy):
    """The rows of this data-parallel rank, round-robin."""
    return experience.select(torch.arange(strategy.data_parallel_rank, len(experience), strategy.data_parallel_size))


def record_gradient(strategy, seen):
    """Note the full gradient, by Hugging Face name, that a step is taken along."""
    megatron = isinstance(strategy, MegatronStrategy)
    of = strategy.optimizer if megatron else strategy
    method = "step" if megatron else "_step"
    take_step = getattr(of, method)

    def step():
        if megatron:
            found = strategy.weights_table.stream(strategy.optimizer.gradient)
        else:
            found = ((name, each.grad) for name, each in strategy.model.named_parameters())
        seen.update((name, gradient.detach().cpu().clone()) for name, gradient in found)
        return take_step()

    setattr(of, method, step)


def weights(strategy):
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in strategy.weights()}


def job_agree(job, options):
    """Forward, one update with its gradient, weights."""
    strategy = build(job, options)
    experience = share(batch(job.get("rows", 7)), strategy)
    objective = AllOutputs(strategy.spec.head, job.get("vocabulary", False))
    gradient = {}
    record_gradient(strategy, gradient)
    before = weights(strategy)
    outputs = strategy.forward(experience, objective.wanted)
    metrics = strategy.update(experience, objective)
    return {
        "outputs": {name: value for name, value in outputs._asdict().items() if value is not None},
        "metrics": {name: mean.value for name, mean in metrics.items()},
        "gradient": gradient,
        "before": before,
        "weights": weights(strategy),
        "place": (strategy.data_parallel_rank, strategy.data_parallel_size),
    }


def job_train(job, options):
    """Updates on the batches of some seeds, after loading and before saving."""
    strategy = build(job, options)
    if "load" in job:
        strategy.load(Path(job["load"]))
    for seed in job["seeds"]:
        strategy.update(share(batch(seed=seed), strategy), AllOutputs(strategy.spec.head))
    if "save" in job:
        strategy.save(Path(job["save"]))
    if "export" in job:
        strategy.export(Path(job["export"]))
    return {"weights": weights(strategy)}


def job_nonfinite(job, options):
    """The local rows that an update names, and whether the weights stayed."""
    strategy = build(job, options)
    before = weights(strategy)
    named = None
    try:
        strategy.update(share(batch(), strategy), AllOutputs(bad_row_length=job["bad_row_length"]))
    except CoreRLError as error:
        named = list(error.rows)
    same = all(torch.equal(tensor, before[name]) for name, tensor in weights(strategy).items())
    strategy.update(share(batch(), strategy), AllOutputs())
    return {"rows": named, "same": same}


def job_build(job, options):
    build(job, options)


def job_round_trip(job, options):
    """Weights in and out of a model that is not run: so with layouts, too, that the CPU has no schedule for."""
    options = MegatronOptions(**options)
    named = ModelConfig(path=job["model"], load_format="dummy", dtype="fp32")
    spec = StrategySpec(named, "cpu", MicroBatching(max_sequences=1), head=job.get("head", "lm"))
    meta = load_model(named, spec.head, device="meta", dtype=torch.float32)
    facts = Facts.read("model.path", meta.config.to_dict())
    ranks = parallel.lay_out("cpu", options, "actor.strategy")
    weights_table = Weights(model.build(spec, options, ranks, facts, meta), facts, meta, ranks, spec.head)
    source = dict(canonical(load_model(named, spec.head, device="cpu", dtype=torch.float32).named_parameters()))
    weights_table.fill(source if ranks.data.rank == ranks.tensor.rank == 0 else None, "cpu", torch.float32)
    streamed = {name: tensor.clone() for name, tensor in weights_table.stream()}
    same = all(torch.equal(tensor, source[name]) for name, tensor in streamed.items())
    return {"same": same and streamed.keys() == source.keys(), "own": len(weights_table.parameters)}


def run(job, options=None):
    """A job's result, or the error that it ended with; without options by ``torch``."""
    try:
        return globals()[f"job_{job['kind']}"](job, options)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def serve(connection, environment):
    """One rank: do the jobs that come, each with the options of its layout."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    while True:
        connection.send(run(*connection.recv()))
