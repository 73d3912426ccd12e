"""The names registered by corerl-dapo."""

from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.batch_filters import BatchFilter
    from corerl.contracts.presets import Preset
    from corerl.contracts.reward_managers import RewardManagerFactory
    from corerl.contracts.runs import Run


@hookimpl
def register_batch_filters(register: "Register[BatchFilter]") -> None:
    register(
        "dynamic_sampling",
        "corerl_dapo.dynamic_sampling:dynamic_sampling",
        options="corerl_dapo.options:DynamicSamplingOptions",
        summary="groups whose responses differ in score (DAPO, 2503.14476)",
    )


@hookimpl
def register_reward_managers(register: "Register[RewardManagerFactory]") -> None:
    register(
        "dapo",
        "corerl_dapo.reward_manager:DapoRewardManager",
        options="corerl_dapo.options:DapoOptions",
        summary="as parallel, minus a penalty for responses near the largest length (DAPO, 2503.14476)",
    )


@hookimpl
def register_presets(register: "Register[Preset]") -> None:
    register(
        "dapo",
        "corerl_dapo.presets:dapo",
        summary="clip-higher, dynamic sampling, token mean, overlong shaping, no KL (DAPO, 2503.14476)",
    )


@hookimpl
def run_started(run: "Run") -> None:
    from corerl.contracts.config import TrainConfig
    from corerl.terminal import say
    from corerl_dapo.options import DynamicSamplingOptions

    if not isinstance(run.config, TrainConfig) or not run.config.algorithm.filter_groups.enable:
        return
    given = run.config.algorithm.filter_groups.filter
    options = dict(given) if isinstance(given, dict) else {"name": given}
    if options.pop("name") == "dynamic_sampling":
        for each in DynamicSamplingOptions(**options).examine("algorithm.filter_groups.filter", run.config):
            say(f"{each.key}: {each.sentence}. {each.remedy}")
