"""The names registered by corerl-ppo."""

from typing import TYPE_CHECKING

from corerl import Register, hookimpl
from corerl.contracts.facts import Claims
from corerl.contracts.metrics import Metric

if TYPE_CHECKING:
    from corerl.contracts.advantage_estimators import AdvantageEstimator
    from corerl.contracts.kl_controllers import KLController
    from corerl.contracts.presets import Preset
    from corerl.contracts.value_losses import ValueLoss


@hookimpl
def register_advantage_estimators(register: "Register[AdvantageEstimator]") -> None:
    register(
        "gae",
        "corerl_ppo.gae:gae",
        options="corerl_ppo.options:GaeOptions",
        needs={"critic"},
        claims=Claims("surrogate", factor=""),
        summary="generalized advantage estimation, whitened (1506.02438, 1707.06347)",
    )
    register(
        "turn_gae",
        "corerl_ppo.turn_gae:turn_gae",
        options="corerl_ppo.options:TurnGaeOptions",
        needs={"critic"},
        claims=Claims("surrogate", factor=""),
        summary="generalized advantage estimation over turns, whitened (Turn-PPO, 2512.17008)",
    )


@hookimpl
def register_value_losses(register: "Register[ValueLoss]") -> None:
    register(
        "clipped",
        "corerl_ppo.value_loss:clipped",
        options="corerl_ppo.options:ClippedOptions",
        metrics=(Metric("critic/vf_clipfrac", "share", "trained tokens held by the clip, without gradient"),),
        summary="half the squared error, the value held near its old one (2005.12729)",
    )
    register("squared", "corerl_ppo.value_loss:squared", summary="half the squared error (1707.06347)")


@hookimpl
def register_kl_controllers(register: "Register[KLController]") -> None:
    register("fixed", "corerl_ppo.kl_control:fixed", summary="keeps the coefficient")
    register(
        "adaptive",
        "corerl_ppo.kl_control:adaptive",
        options="corerl_ppo.options:AdaptiveOptions",
        summary="steers the KL towards a target (Ziegler et al. 2019, 1909.08593)",
    )


@hookimpl
def register_presets(register: "Register[Preset]") -> None:
    register(
        "ppo", "corerl_ppo.presets:ppo", summary="PPO with a critic and KL in the reward (InstructGPT, 2203.02155)"
    )
