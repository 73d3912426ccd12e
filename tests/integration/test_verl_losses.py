"""A converted command has verl's loss: options, aggregation, value and gradient.

The references are plain loops in float64, written from verl's formulas with verl's defaults.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch

from corerl.config import typed
from corerl.contracts.config import TrainConfig
from corerl.contracts.policy_losses import PolicyLossInputs
from corerl.objective import loss_weights
from corerl.plugins import load_plugins
from corerl.registry.parts import resolve_parts
from corerl_verl.algorithms import CONTROLLERS, ESTIMATORS, LOSSES
from corerl_verl.from_verl import from_verl

pytest.importorskip("corerl_grpo")
pytest.importorskip("corerl_ppo")
pytest.importorskip("corerl_dapo")
pytest.importorskip("corerl_hf")
pytest.importorskip("corerl_rewards")

ACTOR = "actor_rollout_ref.actor."
REGISTRIES = load_plugins((), ()).registries
RUNNABLE = ("model.path=m", "data.train_files=t", "actor_rollout_ref.rollout.n=4", "trainer.logger=console")
HERE = {"rollout.name": "hf", "runtime.name": "local", "actor.strategy": "torch"}

CLIP = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}
VERLS_OPTIONS = {
    "vanilla": CLIP | {"clip_ratio_c": 3.0},
    "gspo": CLIP,
    "geo_mean": CLIP,
    "sapo": {"tau_pos": 1.0, "tau_neg": 1.05},
    "cispo": CLIP,
    "dppo_tv": CLIP | {"clip_ratio_c": 3.0},
    "dppo_kl": CLIP | {"clip_ratio_c": 3.0},
    "gpg": {},
    "clip_cov": CLIP | {"clip_cov_ratio": 2e-4, "clip_cov_lb": 1.0, "clip_cov_ub": 5.0},
    "kl_cov": {"kl_cov_ratio": 2e-4, "ppo_kl_coef": 0.1, "kl_estimator": "abs"},
}
"""of verl's actor.yaml and the functions in its core_algos.py; dro has no default there"""
BY_SEQUENCES = {"gspo", "geo_mean", "sapo"}


def converted(*arguments: str):
    """The config of a command that runs here, and its parts."""
    values, remarks = from_verl([*RUNNABLE, *arguments])
    for key, value in HERE.items():
        section, name = key.split(".")
        values[section][name] = value
    values["model"] = {"path": "m"}
    config = typed.build(TrainConfig, values)
    return config, resolve_parts(config, REGISTRIES), remarks


def test_every_loss_of_the_table_but_dro_is_compared_with_verls_defaults() -> None:
    assert LOSSES.keys() - {"dro"} == VERLS_OPTIONS.keys()


@pytest.mark.parametrize("mode", VERLS_OPTIONS)
def test_a_bare_loss_has_verls_options_and_aggregation(mode: str) -> None:
    config, parts, _ = converted("algorithm.adv_estimator=grpo", f"{ACTOR}policy_loss.loss_mode={mode}")
    assert parts.policy_loss.entry.name == LOSSES[mode].name
    assert (vars(parts.policy_loss.options) if parts.policy_loss.options else {}) == VERLS_OPTIONS[mode]
    assert config.actor.loss_agg_mode == ("seq-mean-token-mean" if mode in BY_SEQUENCES else "token-mean")


ESTIMATOR_OPTIONS = {
    "algorithm.gamma": 0.9,
    "algorithm.lam": 0.8,
    "algorithm.norm_adv_by_std_in_grpo": False,
    "algorithm.gdpo_reward_keys": ["a", "b"],
    "algorithm.gdpo_reward_weights": [1.0, 2.0],
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_of_verl_is_one_here_and_takes_the_options_that_verls_reads(name: str) -> None:
    given = [f"{key}={value}" for key, value in ESTIMATOR_OPTIONS.items()]
    _, parts, remarks = converted(f"algorithm.adv_estimator={name}", *given)
    assert parts.adv_estimator.entry.name == ESTIMATORS[name].name
    read = {each.verl: each.here.rpartition(".")[2] for each in ESTIMATORS[name].reads}
    for key, value in ESTIMATOR_OPTIONS.items():
        said = any(f"{key}=" in remark and "does not read it either" in remark for remark in remarks)
        assert said == (key not in read)
        assert said or getattr(parts.adv_estimator.options, read[key]) == value


VERLS_ESTIMATORS = {
    "gae": {"gamma": 1.0, "lam": 1.0},
    "grpo": {"norm_adv_by_std_in_grpo": True},
    "grpo_vectorized": {"norm_adv_by_std_in_grpo": True},
    "grpo_passk": {"norm_adv_by_std_in_grpo": True},
    "reinforce_plus_plus": {"gamma": 1.0},
    "gpg": {"f_norm": 1.0},
    "optimal_token_baseline": {"handle_zero_tail": True},
    "tir_optimal_token_baseline": {"handle_zero_tail": True},
}
"""of verl's ppo_trainer.yaml and the signatures in its core_algos.py"""


@pytest.mark.parametrize("name", VERLS_ESTIMATORS)
def test_a_bare_estimator_has_verls_options(name: str) -> None:
    config, parts, remarks = converted(f"algorithm.adv_estimator={name}")
    assert (vars(parts.adv_estimator.options), remarks) == (VERLS_ESTIMATORS[name], [])
    assert parts.value_loss is None or vars(parts.value_loss.options)["cliprange_value"] == 0.5
    assert config.critic.loss_agg_mode == "token-mean"


def test_a_bare_adaptive_controller_has_verls_options() -> None:
    _, parts, _ = converted("algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.type=adaptive")
    assert vars(parts.kl_controller.options) == {"target_kl": 0.1, "horizon": 10000}
    assert parts.kl_penalty.entry.name == "kl"


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_kl_controller_takes_what_verls_reads(name: str) -> None:
    arguments = ("algorithm.use_kl_in_reward=True", f"algorithm.kl_ctrl.type={name}", "algorithm.adv_estimator=grpo")
    _, parts, _ = converted(*arguments, "algorithm.kl_ctrl.horizon=5000", "algorithm.kl_ctrl.target_kl=0.3")
    options = parts.kl_controller.options
    assert (options.horizon, options.target_kl) == (5000, 0.3) if name == "adaptive" else options is None


K1, K2 = (lambda x: x, lambda _: 1.0), (lambda x: x * x / 2, lambda x: x)
K3 = (lambda x: math.exp(-x) + x - 1, lambda x: 1 - math.exp(-x))
ABS = (abs, lambda x: math.copysign(1.0, x))
KL_TYPES = {"kl": K1, "k1": K1, "mse": K2, "k2": K2, "low_var_kl": K3, "k3": K3, "abs": ABS}
"""value and slope by d = log pi - log pi_ref"""


@pytest.mark.parametrize("name", ["k2+", "mse+", "k1+", "k3+", "low_var_kl+", "kl", "abs", "mse", "low_var_kl"])
def test_every_kl_type_of_verl_is_one_here(name: str) -> None:
    _, parts, _ = converted("actor_rollout_ref.actor.use_kl_loss=True", f"actor_rollout_ref.actor.kl_loss_type={name}")
    difference = torch.tensor([[0.4, -0.3]], dtype=torch.float64, requires_grad=True)
    terms = parts.kl_loss.load()(difference, torch.zeros(1, 2, dtype=torch.float64))
    terms.sum().backward()
    base, d = name.removesuffix("+"), [0.4, -0.3]
    value, slope = KL_TYPES[base]
    assert terms.tolist()[0] == pytest.approx([value(x) for x in d], rel=1e-12)
    assert difference.grad.tolist()[0] == pytest.approx([x if name.endswith("+") else slope(x) for x in d], rel=1e-12)


def batch(seed: int = 0):
    """(log pi, log pi_old, A, mask): ratios far enough from 1 for every clip, rows of several lengths."""
    random = np.random.default_rng(seed)
    old = np.log(random.uniform(0.05, 0.95, (6, 5)))
    new = np.minimum(old + random.normal(0.0, 0.5, (6, 5)), -1e-3)
    new[0] = old[0] + 1e-3  # a sequence that moves less than a width of 0.01
    advantages = np.repeat(random.normal(0.0, 1.0, (6, 1)), 5, axis=1)
    mask = np.arange(5) < np.array([5, 3, 4, 1, 5, 2])[:, None]
    return new, old, advantages, mask


def sequence_ratio(d, mask, row):
    tokens = [t for t in range(mask.shape[1]) if mask[row, t]]
    return math.exp(sum(d[row, t] for t in tokens) / len(tokens)), len(tokens)


def gspo(new, old, a, mask, row, t, low, high):
    ratio, _ = sequence_ratio(new - old, mask, row)
    clipped = min(max(ratio, 1 - low), 1 + high)
    term = max(-a[row, t] * ratio, -a[row, t] * clipped)
    moves = -a[row, t] * ratio >= -a[row, t] * clipped
    return term, {t: -a[row, t] * ratio if moves and (clipped == ratio or term != -a[row, t] * clipped) else 0.0}


def geo_mean(new, old, a, mask, row, t, low, high):
    sign = np.sign(a[row, t])
    d = new[row] - old[row]
    kept = [sign * min(sign * x, sign * min(max(x, -low), high)) for x in d]
    tokens = [k for k in range(len(d)) if mask[row, k]]
    term = -a[row, t] * math.exp(sum(kept[k] for k in tokens) / len(tokens))
    return term, {k: term / len(tokens) if kept[k] == d[k] else 0.0 for k in tokens}


def cispo(new, old, a, mask, row, t, low, high):
    weight = min(max(math.exp(new[row, t] - old[row, t]), 1 - low), 1 + high)
    return -weight * a[row, t] * new[row, t], {t: -weight * a[row, t]}


def sapo(new, old, a, mask, row, t, positive, negative):
    tau = positive if a[row, t] > 0 else negative
    ratio = math.exp(new[row, t] - old[row, t])
    gate = 1 / (1 + math.exp(-tau * (ratio - 1)))
    return -a[row, t] * gate * 4 / tau, {t: -a[row, t] * 4 * gate * (1 - gate) * ratio}


def dppo(kind, new, old, a, mask, row, t, low, high, cap):
    p, q = math.exp(new[row, t]), math.exp(old[row, t])
    weight = min(p / q, cap)
    if kind == "tv":
        inside = p - q <= high if a[row, t] > 0 else p - q >= -low
    else:
        divergence = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
        inside = (divergence <= high or p <= q) if a[row, t] > 0 else (divergence <= low or p >= q)
    return (-a[row, t] * weight * new[row, t], {t: -a[row, t] * weight}) if inside else (0.0, {})


def vanilla(new, old, a, mask, row, t, low, high, dual):
    ratio, x = math.exp(new[row, t] - old[row, t]), a[row, t]
    free, clipped = -x * ratio, -x * min(max(ratio, 1 - low), 1 + high)
    term = max(free, clipped)
    if x < 0:
        term = min(term, -x * dual)
    return term, {t: free if term == free else 0.0}


def gpg(new, old, a, mask, row, t):
    return -a[row, t] * new[row, t], {t: -a[row, t]}


CASES = {
    "gspo": ("gspo", partial(gspo, low=0.2, high=0.2), ()),
    "gspo, the paper's widths": (
        "gspo",
        partial(gspo, low=3e-4, high=4e-4),
        (f"{ACTOR}clip_ratio_low=3e-4", f"{ACTOR}clip_ratio_high=4e-4", f"{ACTOR}loss_agg_mode=seq-mean-token-mean"),
    ),
    "gspo, another aggregation": ("gspo", partial(gspo, low=0.2, high=0.2), (f"{ACTOR}loss_agg_mode=token-mean",)),
    "geo_mean": ("geo_mean", partial(geo_mean, low=0.2, high=0.2), ()),
    "geo_mean, widths": (
        "geo_mean",
        partial(geo_mean, low=0.4, high=0.3),
        (f"{ACTOR}clip_ratio_low=0.4", f"{ACTOR}clip_ratio_high=0.3"),
    ),
    "cispo": ("cispo", partial(cispo, low=0.2, high=0.2), ()),
    "cispo, widths": (
        "cispo",
        partial(cispo, low=0.9, high=0.05),
        (f"{ACTOR}clip_ratio_low=0.9", f"{ACTOR}clip_ratio_high=0.05"),
    ),
    "sapo": ("sapo", partial(sapo, positive=1.0, negative=1.05), ()),
    "sapo, temperatures": (
        "sapo",
        partial(sapo, positive=2.0, negative=3.0),
        (f"{ACTOR}tau_pos=2.0", f"+{ACTOR}tau_neg=3.0", f"{ACTOR}clip_ratio_high=0.28"),
    ),
    "dppo_tv": ("dppo_tv", partial(dppo, "tv", low=0.2, high=0.2, cap=3.0), ()),
    "dppo_kl": ("dppo_kl", partial(dppo, "kl", low=0.2, high=0.2, cap=3.0), ()),
    "dppo_kl, bounds": (
        "dppo_kl",
        partial(dppo, "kl", low=0.05, high=0.03, cap=1.5),
        (f"{ACTOR}clip_ratio_low=0.05", f"{ACTOR}clip_ratio_high=0.03", f"{ACTOR}clip_ratio_c=1.5"),
    ),
    "vanilla": ("vanilla", partial(vanilla, low=0.2, high=0.2, dual=3.0), ()),
    "vanilla, one side": (
        "vanilla",
        partial(vanilla, low=0.2, high=0.28, dual=1.4),
        (f"{ACTOR}clip_ratio_high=0.28", f"{ACTOR}clip_ratio_c=1.4", f"{ACTOR}clip_ratio=0.2"),
    ),
    "gpg": ("gpg", gpg, (f"{ACTOR}loss_agg_mode=seq-mean-token-sum",)),
}
AGGREGATIONS = {"vanilla": "token-mean", "cispo": "token-mean", "dppo_tv": "token-mean", "dppo_kl": "token-mean"}


@pytest.mark.parametrize("case", CASES)
def test_the_loss_of_a_converted_command_is_verls(case: str) -> None:
    mode, reference, arguments = CASES[case]
    config, parts, _ = converted("algorithm.adv_estimator=grpo", f"{ACTOR}policy_loss.loss_mode={mode}", *arguments)
    new, old, advantages, mask = batch()
    rows, tokens = mask.shape
    weights = np.zeros(mask.shape)
    for row in range(rows):  # verl's aggregation of this loss
        for t in range(tokens):
            if mask[row, t]:
                by = {"gpg": 1 / rows, **dict.fromkeys(AGGREGATIONS, 1 / mask.sum())}
                weights[row, t] = by.get(mode, 1 / (rows * mask[row].sum()))
    value, gradient = 0.0, np.zeros(mask.shape)
    for row in range(rows):
        for t in range(tokens):
            if mask[row, t]:
                term, slopes = reference(new, old, advantages, mask, row, t)
                value += weights[row, t] * term
                for k, slope in slopes.items():
                    gradient[row, k] += weights[row, t] * slope
    log_probs = torch.from_numpy(np.where(mask, new, 0.0)).requires_grad_()
    inputs = PolicyLossInputs(
        log_probs,
        torch.from_numpy(np.where(mask, old, 0.0)),
        torch.from_numpy(np.where(mask, advantages, 0.0)),
        torch.from_numpy(mask),
    )
    shares = loss_weights(inputs.response_mask, config.actor.loss_agg_mode, config.data.max_response_length)
    loss = torch.where(inputs.response_mask, parts.policy_loss.load()(inputs).terms * shares, 0.0).sum()
    loss.backward()
    assert float(loss.detach()) == pytest.approx(value, rel=1e-9)
    assert torch.allclose(log_probs.grad, torch.from_numpy(gradient), rtol=1e-9, atol=1e-12)
    assert (gradient != 0).any()
