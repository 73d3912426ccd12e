"""What corerl-grpo registers."""

from corerl import hookimpl
from corerl.hookspecs import Register
from corerl.registry.advantage_estimators import AdvantageEstimator
from corerl.registry.kl_types import KLType
from corerl.registry.policy_losses import PolicyLoss
from corerl_grpo.options import GrpoOptions, VanillaOptions


@hookimpl
def register_advantage_estimators(register: Register[AdvantageEstimator]) -> None:
    register(
        "grpo",
        "corerl_grpo.advantages.grpo:grpo",
        options=GrpoOptions,
        needs_groups=True,
        summary="score minus the group's mean, over its deviation (DeepSeekMath, 2402.03300)",
    )


@hookimpl
def register_policy_losses(register: Register[PolicyLoss]) -> None:
    register(
        "vanilla",
        "corerl_grpo.losses.vanilla:vanilla",
        options=VanillaOptions,
        summary="PPO clip with two widths and the dual clip (1707.06347, 1912.09729, 2503.14476)",
    )


@hookimpl
def register_kl_types(register: Register[KLType]) -> None:
    register("low_var_kl", "corerl_grpo.kl.low_var_kl:low_var_kl", summary="k3: exp(-d) + d - 1 (Schulman 2020)")
