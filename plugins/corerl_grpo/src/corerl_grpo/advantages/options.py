"""Options of the advantage estimators; they are checked without importing torch."""

from dataclasses import dataclass

from corerl import option


@dataclass(frozen=True)
class GrpoOptions:
    norm_adv_by_std_in_grpo: bool = option(True, "divide by the group's standard deviation")


@dataclass(frozen=True)
class GrpoPasskOptions:
    norm_adv_by_std_in_grpo: bool = option(True, "divide by the group's standard deviation")


@dataclass(frozen=True)
class GdpoOptions:
    gdpo_reward_keys: list[str] = option(help="components of the score; none: all components", factory=list)
    gdpo_reward_weights: list[float] = option(help="one for each of gdpo_reward_keys; none: all 1", factory=list)

    def __post_init__(self) -> None:
        if self.gdpo_reward_weights and len(self.gdpo_reward_weights) != len(self.gdpo_reward_keys):
            raise ValueError(
                f"gdpo_reward_weights has {len(self.gdpo_reward_weights)} numbers for {len(self.gdpo_reward_keys)} "
                "gdpo_reward_keys: there must be one for each"
            )


@dataclass(frozen=True)
class ReinforcePlusPlusOptions:
    gamma: float = option(1.0, "discount of the return, for each token", ge=0, le=1)


@dataclass(frozen=True)
class GpgOptions:
    f_norm: float = option(1.0, "advantages are divided by this", gt=0)


@dataclass(frozen=True)
class OptimalTokenBaselineOptions:
    handle_zero_tail: bool = option(True, "baseline 0 if one response of the group is left; false: its own return")


@dataclass(frozen=True)
class TpoOptions:
    eta: float = option(1.0, "temperature of the target: larger is nearer to the old policy", gt=0)


@dataclass(frozen=True)
class A2poOptions:
    value_key: str = option(help="component of the score that has the optimal value of the prompt")


@dataclass(frozen=True)
class A2poGroupOptions:
    beta: float = option(0.5, "temperature of the optimal value: smaller is nearer to the best score", gt=0)
