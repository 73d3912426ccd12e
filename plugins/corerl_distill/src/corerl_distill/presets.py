"""Self-distillation: the teacher is the model itself with more in its prompt, the row's ``ground_truth``.

``opsd``: the initial model with the answer, ``jsd`` over the vocabulary (Zhao et al. 2026, arXiv 2601.18734).
``sdft``: the policy with a demonstration, ``reverse_kl`` over the vocabulary (Shenfeld et al. 2026, arXiv 2601.19897).
"""

from typing import Any

ANSWER = "{prompt}\n\nThe correct answer is: {ground_truth}\nReason step by step as if it were unknown, then give it."
DEMONSTRATION = "{prompt}\n\nHere is an example of a good response:\n{ground_truth}\n\nNow answer in your own words."


def opsd() -> dict[str, Any]:
    """On-policy self-distillation: Zhao et al. 2026, arXiv 2601.18734.

    The teacher is the initial model with the answer in its prompt; the divergence is over the whole vocabulary. A
    written ``teachers.self.context`` replaces the text around the answer.
    """
    return _self({"context": ANSWER}, divergence="jsd", beta=0.5)


def sdft() -> dict[str, Any]:
    """Self-distillation fine-tuning: Shenfeld et al. 2026, arXiv 2601.19897.

    The teacher is the policy with a demonstration (``ground_truth``) in its prompt. The paper's teacher has averaged
    weights of past policies; here it has the present ones. ``teachers.self.weights: ema`` with an ``ema_decay`` of
    ``actor.strategy`` averages them.
    """
    return _self({"context": DEMONSTRATION, "weights": "policy"}, divergence="reverse_kl")


def _self(teacher: dict[str, Any], **options: Any) -> dict[str, Any]:
    """No advantages: one response to a prompt, and an estimator without groups."""
    loss = {"name": "distill", "form": "full", "teachers": {"self": teacher}, **options}
    return {
        "algorithm": {"adv_estimator": "reinforce_plus_plus", "use_kl_in_reward": False},
        "actor": {"policy_loss": loss, "use_kl_loss": False},
        "rollout": {"n": 1},
    }
