"""The policy loss ``distill``, its teachers as further models of the run, and presets of self-distillation."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from corerl import Register, hookimpl
from corerl.contracts.facts import Claims
from corerl.contracts.metrics import Metric

if TYPE_CHECKING:
    from corerl.contracts.annotators import ModelRole
    from corerl.contracts.config import TrainConfig
    from corerl.contracts.policy_losses import PolicyLoss
    from corerl.contracts.presets import Preset
    from corerl_distill.annotator import Teachers


@hookimpl
def register_policy_losses(register: "Register[PolicyLoss]") -> None:
    register(
        "distill",
        "corerl_distill.loss:distill",
        options="corerl_distill.options:DistillOptions",
        of_logits="corerl_distill.of_logits:make",
        claims=Claims("surrogate", "corerl_distill.claims:objective"),
        metrics=(
            Metric(
                "actor/divergence",
                "nats",
                "mean divergence of policy and teacher; of form sampled the mean of log pi_old - log pi_teacher",
            ),
        ),
        summary="on-policy distillation from teachers, over the vocabulary, the top k or samples (GKD, 2306.13649)",
    )


@hookimpl
def register_presets(register: "Register[Preset]") -> None:
    register(
        "opsd",
        "corerl_distill.presets:opsd",
        summary="self-distillation: the initial model with the answer in its prompt is the teacher (2601.18734)",
    )
    register(
        "sdft",
        "corerl_distill.presets:sdft",
        summary="self-distillation: the policy with a demonstration in its prompt is the teacher (2601.19897)",
    )


@hookimpl
def model_roles(config: "TrainConfig", parts: Any) -> "Iterator[ModelRole]":
    from corerl_distill.roles import model_roles

    return model_roles(config, parts)


@hookimpl
def make_annotator(plan: Any, models: Any) -> "Teachers | None":
    from corerl_distill.options import DistillOptions

    options = plan.parts.policy_loss.options
    if not isinstance(options, DistillOptions):
        return None
    from corerl_distill.annotator import Teachers

    return Teachers(options, plan, models)
