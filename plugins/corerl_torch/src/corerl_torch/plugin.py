"""What every training with models has: tokenizers, metrics, evaluations, restarts, KL penalties, tracker ``console``,
optimizers, schedules, profiles, aliases of keys and rules for them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from corerl import Register, hookimpl
from corerl.contracts.kinds import Kind

if TYPE_CHECKING:
    from pathlib import Path

    from corerl.contracts.config import ModelConfig, TrainConfig
    from corerl.contracts.experience import Experience, RowNumbers
    from corerl.contracts.losses import Measure
    from corerl.contracts.objective import LossTerm
    from corerl.contracts.reward_managers import RewardResult
    from corerl.contracts.throughput import ModelShape
    from corerl.contracts.trackers import TrackerFactory
    from corerl.errors import RequestError
    from corerl.registry.parts import Parts
    from corerl.rollout.stream import Stream
    from corerl.trainer.models import Models
    from corerl.trainer.plan import Plan
    from corerl.trainer.records import Records
    from corerl.trainer.run import Run
    from corerl.trainer.stopping import Stopping
    from corerl_torch.early_reference import PartwiseReference
    from corerl_torch.evaluation import Evaluation
    from corerl_torch.kl_penalty import KLPenalty
    from corerl_torch.optimizers.contract import OptimizerFactory
    from corerl_torch.restarts import Restarts
    from corerl_torch.schedule_shapes import Shape
    from corerl_torch.tokenizers import HFTokenizer
    from corerl_torch.vocabulary import ReferenceLogProbs


@hookimpl
def add_kinds(add: "Callable[[Kind], None]") -> None:
    from corerl_torch.optimizers.contract import OptimizerFacts

    optimizer = "corerl_torch.optimizers.contract:OptimizerFactory"
    add(Kind("optimizers", "optimizer", optimizer, "actor.optim.optimizer", facts=OptimizerFacts))
    add(Kind("schedules", "schedule", "corerl_torch.schedule_shapes:Shape", "actor.optim.lr_scheduler_type"))


@hookimpl
def register_optimizers(register: "Register[OptimizerFactory]") -> None:
    options, folder = "corerl_torch.optimizers.options", "corerl_torch.optimizers"
    register("adamw", f"{folder}.adamw:adamw", options=f"{options}:AdamWOptions", summary="AdamW, fused (1711.05101)")
    register(
        "adamw_8bit",
        f"{folder}.eight_bit:adamw_8bit",
        options=f"{options}:EightBitOptions",
        summary="AdamW with moments of 8 bits, 2 bytes a weight (2110.02861)",
    )
    register(
        "muon",
        f"{folder}.muon:muon",
        options=f"{options}:MuonOptions",
        summary="orthogonalised momentum for matrices, AdamW for the rest (2502.16982)",
    )


@hookimpl
def register_schedules(register: "Register[Shape]") -> None:
    shapes = "corerl_torch.schedule_shapes"
    register("constant", f"{shapes}:constant", summary="lr to the end")
    register("linear", f"{shapes}:linear", summary="down in a line")
    register(
        "cosine", f"{shapes}:cosine", options=f"{shapes}:CosineOptions", summary="down in half a wave (1608.03983)"
    )
    register(
        "cosine_with_restarts",
        f"{shapes}:cosine_with_restarts",
        options=f"{shapes}:RestartOptions",
        summary="down several times, each time from lr (1608.03983)",
    )
    register(
        "wsd", f"{shapes}:wsd", options=f"{shapes}:WsdOptions", summary="stable, then down at the end (2404.06395)"
    )


@hookimpl
def register_trackers(register: "Register[TrackerFactory]") -> None:
    register("console", "corerl_check.console:ConsoleTracker", summary="a line a step")


@hookimpl(trylast=True)
def load_tokenizer(model: "ModelConfig") -> "HFTokenizer":
    from corerl_torch.tokenizers import load_tokenizer

    return load_tokenizer(model)


@hookimpl
def read_config(
    file: "Path | None", overrides: Sequence[str], preset: Mapping[str, "Any"], aliases: Mapping[str, str]
) -> "dict[str, Any]":
    from corerl.contracts.config import TrainConfig
    from corerl_check.aliases import read_over_preset
    from corerl_check.bitwise import with_options

    return with_options(read_over_preset(TrainConfig, preset, file, overrides, aliases))


@hookimpl
def config_errors(config: "TrainConfig", parts: "Parts") -> "Iterator[RequestError]":
    from corerl_check.rules import violations
    from corerl_torch.optimizers.rules import violations as of_optimizers

    yield from violations(config, parts)
    yield from of_optimizers(config, parts)
    if config.trainer.profile:
        from corerl_torch.profiling.options import violations as of_profiles

        yield from of_profiles(config, parts)
    if config.model.override_config or config.critic.model:
        from corerl_torch.overrides import of_run

        yield from of_run(config, has_critic=parts.value_loss is not None)


@hookimpl
def around_step(run: "Run", step: int, workers: Mapping[str, "Any"]) -> "Any":
    if step not in run.config.trainer.profile.get("steps", ()):
        return None
    from corerl_torch.profiling import steps

    return steps.around_step(run, step, workers)


@hookimpl
def check_requirements(config: "TrainConfig", parts: "Parts") -> None:
    from corerl_check.requirements import require_engine
    from corerl_torch import contents

    require_engine(config, parts.rollout_backend, parts.runtime)
    for role, (key, options) in contents.of_roles(parts).items():
        contents.check_initial(key, options, role)


@hookimpl
def step_metrics(
    experience: "Experience",
    results: "Sequence[RewardResult]",
    truncated: Sequence[bool],
    max_prompt_length: int,
    responses: int,
) -> "Mapping[str, Measure]":
    from corerl_torch.batch_metrics import step_metrics

    return step_metrics(experience, results, truncated, max_prompt_length, responses)


@hookimpl
def time_metrics(
    experience: "RowNumbers",
    seconds: Mapping[str, float],
    background: Mapping[str, float],
    shape: "ModelShape",
    passes: int,
) -> Mapping[str, float]:
    from corerl_torch.batch_metrics import sequence_length_metrics
    from corerl_torch.time_metrics import performance_metrics, time_metrics

    timed = time_metrics(seconds, background, experience) | performance_metrics(seconds, experience, shape, passes)
    return timed | sequence_length_metrics(experience.lengths, shape.data_parallel_size)


@hookimpl(trylast=True)
def make_restarts(plan: "Plan", stopping: "Stopping", stack: ExitStack) -> "Restarts":
    from corerl_torch.restarts import Restarts

    return Restarts(plan, stopping, stack)


@hookimpl
def loss_terms(config: "TrainConfig", parts: "Parts") -> "Iterable[LossTerm]":
    if parts.kl_loss is None or "logits" not in parts.kl_loss.entry.needs:
        return ()
    from corerl_torch.vocabulary import VocabularyKLTerm

    return [VocabularyKLTerm(parts.kl_loss.load(), config.actor.kl_loss_coef, config.rollout.temperature)]


@hookimpl
def make_annotator(plan: "Plan", models: "Models") -> "ReferenceLogProbs | None":
    if plan.parts.kl_loss is None or "logits" not in plan.parts.kl_loss.entry.needs:
        return None
    from corerl_torch.vocabulary import reference_log_probs

    return reference_log_probs(plan, models)


@hookimpl(trylast=True)
def make_early_reference(plan: "Plan", models: "Models", stack: ExitStack) -> "PartwiseReference | None":
    parts = plan.config.ref.overlap_parts
    if parts == 1 or models.reference is None:
        return None
    from corerl_torch.early_reference import PartwiseReference

    early = PartwiseReference(models.reference, plan.config.data.train_batch_size, parts)
    stack.callback(early.close)
    return early


@hookimpl(trylast=True)
def make_kl_penalty(plan: "Plan", models: "Models") -> "KLPenalty":
    from corerl_torch.kl_penalty import make_kl_penalty

    return make_kl_penalty(plan, models)


@hookimpl(trylast=True)
def make_evaluation(run: "Run", plan: "Plan", stream: "Stream", records: "Records") -> "Evaluation":
    from corerl.seeding import Seeds
    from corerl_torch.evaluation import Evaluation, validation_sampling

    sampling = validation_sampling(plan.config, plan.tokenizer.stop_token_ids)
    return Evaluation(run, plan.val_prompts, stream, sampling, Seeds(plan.config.trainer.seed), records)
