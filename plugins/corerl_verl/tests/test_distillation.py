"""verl's on-policy distillation as the policy loss ``distill`` or a KL loss."""

import pytest

from corerl_verl import hydra
from corerl_verl.from_verl import convert as convert_parsed
from plugins.corerl_verl.tests.conversion import convert

ON = ("actor_rollout_ref.rollout.name=vllm", "distillation.enabled=True")
TEACHER = "distillation.teacher_models.teacher_model.model_path=t"
LOSS = "distillation.distillation_loss"
ESTIMATOR = "algorithm.adv_estimator=grpo"


def losses(*arguments: str) -> list[str]:
    found = convert_parsed(hydra.parse(["actor_rollout_ref.model.path=m", *arguments]))
    return [str(remark) for remark in found.remarks if remark.kind in ("missing", "unknown")]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (  # a policy gradient with the reward log Q - log pi_old at each token
            ("loss_mode=k1", "use_policy_gradient=True", "use_task_rewards=False"),
            {"form": "sampled"},
        ),
        (  # the teacher's own top tokens, so the divergence is KL(teacher || policy)
            ("loss_mode=forward_kl_topk", "topk=16", "use_task_rewards=False"),
            {"form": "top_k", "divergence": "forward_kl", "top_k": 16},
        ),
        (("loss_mode=k3", "use_task_rewards=False"), {"form": "full", "divergence": "forward_kl"}),
        (("loss_mode=k2", "use_task_rewards=False"), {"form": "full", "divergence": "reverse_kl"}),
        (
            ("loss_mode=forward_kl_topk", "use_task_rewards=True", "distillation_loss_coef=0.5"),
            {
                "form": "top_k",
                "divergence": "forward_kl",
                "top_k": 32,
                "use_task_reward": True,
                "coefficient": 0.5,
            },
        ),
    ],
)
def test_each_loss_is_a_form_of_distill(given: tuple[str, ...], expected: dict[str, object]) -> None:
    arguments = (*ON, TEACHER, ESTIMATOR, *(f"{LOSS}.{each}" for each in given), "actor_rollout_ref.rollout.n=4")
    config, _ = convert(*arguments)
    assert config.actor.policy_loss == {"name": "distill", "teacher": "t", **expected}
    assert losses(*arguments) == []


def test_an_estimate_beside_task_rewards_is_the_kl_loss_with_the_teacher_as_reference() -> None:
    given = (f"{LOSS}.loss_mode=k3", f"{LOSS}.use_task_rewards=True", f"{LOSS}.distillation_loss_coef=0.3")
    config, _ = convert(*ON, TEACHER, ESTIMATOR, *given, "actor_rollout_ref.rollout.n=4")
    assert (config.ref.path, config.actor.use_kl_loss) == ("t", True)
    assert (config.actor.kl_loss_coef, config.actor.kl_loss_type) == (0.3, "k3")
    assert config.actor.policy_loss == "vanilla"


def test_each_of_several_teachers_keeps_its_data_sources_and_verls_default_entry_is_no_teacher() -> None:
    models = "distillation.teacher_models"
    config, _ = convert(
        *ON,
        ESTIMATOR,
        f"+{models}.a.key=gsm8k",
        f"+{models}.a.model_path=ta",
        f"+{models}.b.key=geo3k",
        f"+{models}.b.model_path=tb",
        f"{LOSS}.loss_mode=k3",
        "actor_rollout_ref.rollout.n=2",
    )
    expected = {"a": {"path": "ta", "data_sources": ["gsm8k"]}, "b": {"path": "tb", "data_sources": ["geo3k"]}}
    assert isinstance(config.actor.policy_loss, dict)
    assert config.actor.policy_loss["teachers"] == expected


def test_one_response_to_a_prompt_has_an_estimator_without_groups() -> None:
    given = (f"{LOSS}.loss_mode=forward_kl_topk", f"{LOSS}.use_task_rewards=False")
    config, remarks = convert(*ON, TEACHER, ESTIMATOR, *given, "actor_rollout_ref.rollout.n=1")
    assert config.algorithm.adv_estimator == "reinforce_plus_plus"
    assert any(each.startswith("algorithm.adv_estimator=grpo: advantages have no effect") for each in remarks)


def test_a_distillation_that_is_off_loses_nothing_and_one_without_a_teacher_is_named() -> None:
    off = ("actor_rollout_ref.rollout.name=vllm", TEACHER, f"{LOSS}.topk=8", ESTIMATOR)
    config, _ = convert(*off)
    assert config.actor.policy_loss == "vanilla"
    assert losses(*off) == []
    assert losses(*ON, ESTIMATOR) == ["distillation.enabled=True: no model_path of a teacher: left out"]


def test_a_coefficient_that_is_no_number_is_named() -> None:
    given = (f"{LOSS}.use_task_rewards=True", f"{LOSS}.distillation_loss_coef=much", f"{LOSS}.loss_mode=k3")
    config, remarks = convert(*ON, TEACHER, ESTIMATOR, *given, "actor_rollout_ref.rollout.n=4")
    assert config.actor.kl_loss_coef == 1.0
    assert f"{LOSS}.distillation_loss_coef=much: is no number: written as 1" in remarks


def test_teachers_within_the_trainers_processes_lose_nothing() -> None:
    own = ("strategy=megatron", "log_prob_use_dynamic_bsz=True", "megatron.tensor_model_parallel_size=8")
    fused = ("nonrouter=True", "teacher_execution=trainer", "n_gpus_per_node=0", "nnodes=0")
    arguments = (
        *ON,
        TEACHER,
        ESTIMATOR,
        f"{LOSS}.loss_mode=k1",
        f"{LOSS}.use_policy_gradient=True",
        f"{LOSS}.use_task_rewards=False",
        *(f"distillation.{each}" for each in fused),
        *(f"actor_rollout_ref.teacher.{each}" for each in own),
    )
    config, _ = convert(*arguments)
    assert config.actor.policy_loss == {"name": "distill", "teacher": "t", "form": "sampled"}
    assert losses(*arguments) == []
