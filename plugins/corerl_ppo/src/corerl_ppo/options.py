"""Options of the parts of corerl-ppo; they are checked without importing torch."""

from dataclasses import dataclass

from corerl import option


@dataclass(frozen=True)
class GaeOptions:
    gamma: float = option(1.0, "discount of the rewards", ge=0, le=1)
    lam: float = option(1.0, "1: no bias of the critic, most variance; 0: one step ahead, least variance", ge=0, le=1)


@dataclass(frozen=True)
class TurnGaeOptions:
    gamma: float = option(1.0, "discount of the rewards, for each turn", ge=0, le=1)
    lam: float = option(1.0, "1: no bias of the critic, most variance; 0: one turn ahead, least variance", ge=0, le=1)
    whiten: bool = option(True, "whiten the advantages over the batch")


@dataclass(frozen=True)
class ClippedOptions:
    cliprange_value: float = option(0.5, "largest change of a value since the start of the step", gt=0)


@dataclass(frozen=True)
class AdaptiveOptions:
    target_kl: float = option(0.1, "KL of a token at which the coefficient stays", gt=0)
    horizon: int = option(10000, "responses after which a KL far from the target has changed it by about a fifth", ge=1)
