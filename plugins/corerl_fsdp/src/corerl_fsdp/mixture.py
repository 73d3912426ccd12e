"""Mixtures of experts in the strategies: experts computed by group, routers in float32, the balance of the load."""

from typing import Any

import torch

from corerl.contracts.training_strategies import StrategySpec
from corerl.errors import ConfigError
from corerl.models import compute_dtype
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.token_model import TokenModel
from corerl_torch import tries
from corerl_torch.experts.balance import KEY, LoadBalance
from corerl_torch.experts.grouped import expert_modules, use
from corerl_torch.experts.parallel import ExpertGroup, check_experts
from corerl_torch.routers import compute_in_float32


def prepare(model: Any, spec: StrategySpec, options: TorchOptions, group: ExpertGroup | None = None) -> None:
    """Compute the experts of a model by group, and its routers in float32 if so wanted.

    A model without such experts stays as it is.

    Args:
        group: the ranks that divide the experts.

    Raises:
        ConfigError: the group cannot divide them.
    """
    modules = expert_modules(model)
    if group is not None:
        check_experts(model, modules, group)
    if not modules or options.bitwise:
        return
    use(model, group)
    if options.router_float32 and compute_dtype(spec.model, spec.device) != torch.float32:
        compute_in_float32(model)


def shares_prefixes(options: TorchOptions) -> bool | None:
    """The option, which a load-balance loss turns off.

    Raises:
        ConfigError: both are given.
    """
    if options.router_aux_loss_coef and options.share_prefixes:
        raise ConfigError(tries.KEY, f"prefixes cannot be shared {options.unshared}")
    return False if options.router_aux_loss_coef else options.share_prefixes


def load_balance(token_model: TokenModel, options: TorchOptions) -> LoadBalance | None:
    """The balance of a policy in training; None for other models, and without experts or with other kinds of choice.

    Raises:
        ConfigError: a loss or a change of the bias is wanted, and the model has no routers for it.
    """
    replay, rate, coefficient = token_model.replay, options.router_bias_update_rate, options.router_aux_loss_coef
    if replay is None:
        return None
    if replay.error is None:
        return LoadBalance(replay.routers, token_model.model, coefficient, rate)
    if rate or coefficient:
        name = "router_bias_update_rate" if rate else "router_aux_loss_coef"
        raise ConfigError(f"{KEY}.{name}", f"must be 0: {replay.error}")
    return None
