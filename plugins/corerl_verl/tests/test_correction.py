"""verl's rollout correction, converted: the same weights and the same tokens as verl's, by plain loops in float64."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from corerl.config import typed
from corerl.contracts.config import TrainConfig
from corerl_correction.correction import correct
from corerl_verl.from_verl import from_verl

SECTION = "algorithm.rollout_correction"


def converted(*arguments: str) -> tuple[TrainConfig, list[str]]:
    values, remarks = from_verl(["actor_rollout_ref.model.path=m", "algorithm.adv_estimator=grpo", *arguments])
    return typed.build(TrainConfig, values), remarks


def section(**given: Any) -> list[str]:
    return [f"{SECTION}.{name}={value}" for name, value in given.items()]


def case(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    old = -random.exponential(1.0, (14, 6)) - 0.01
    rollout = np.minimum(old + random.normal(0.0, 0.4, (14, 6)) * random.random((14, 1)), -0.005)
    mask = np.arange(6) < random.integers(1, 7, (14, 1))
    return old, rollout, mask


def verls_rule(name: str, spec: str, old: Sequence[float], rollout: Sequence[float]) -> list[bool]:
    """Which tokens of one response verl keeps by a rule: its k1 is -log(pi_old / pi_rollout), between log bounds."""
    ratios = [a - b for a, b in zip(old, rollout, strict=True)]
    if name == "binary_kl":
        pairs = [(math.exp(a), math.exp(b)) for a, b in zip(old, rollout, strict=True)]

        def divergence(p: float, q: float) -> float:
            return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))

        return [max(divergence(p, q), divergence(q, p)) <= float(spec) for p, q in pairs]
    over, _, statistic = name.rpartition("_")
    each = [{"k1": -r, "k2": r * r / 2, "k3": math.exp(r) - 1 - r}[statistic] for r in ratios]
    values = {
        "token": each,
        "seq_sum": [sum(each)] * len(each),
        "seq_mean": [sum(each) / len(each)] * len(each),
        "seq_max": [max(each)] * len(each),
    }[over]
    if statistic != "k1":
        return [value <= float(spec) for value in values]
    lower, upper = spec.split("_") if "_" in spec else (1 / float(spec), spec)
    return [math.log(float(lower)) <= value <= math.log(float(upper)) for value in values]


RULES = {
    "geometric mean": ("seq_mean_k1", "0.9_1.1"),
    "one bound": ("seq_mean_k1", "1.1"),
    "bounds that are no inverses": ("token_k1", "0.6_1.2"),
    "sum": ("seq_sum_k1", "0.5_2.0"),
    "k3": ("seq_mean_k3", "0.03"),
    "binary": ("binary_kl", "0.02"),
    "several": ("token_k1,seq_max_k2", "0.6_1.2,0.1"),
    "several, one threshold": ("token_k2,seq_mean_k3", "0.05"),
    "three, one of them twice": ("seq_max_k3,token_k2,seq_max_k3", "0.2,0.1"),
}


@pytest.mark.parametrize("name", RULES)
def test_rejection_keeps_what_verl_keeps(name: str) -> None:
    rules, thresholds = RULES[name]
    config, _ = converted(*section(rollout_rs=f'"{rules}"', rollout_rs_threshold=f'"{thresholds}"'))
    old, rollout, mask = case()
    names = list(dict.fromkeys(rules.split(",")))
    specs = thresholds.split(",") * (1 if "," in thresholds else len(names))
    expected = np.zeros_like(mask)
    for row, n in enumerate(mask.sum(1)):
        kept = [verls_rule(rule, spec, old[row, :n], rollout[row, :n]) for rule, spec in zip(names, specs, strict=True)]
        expected[row, :n] = np.all(kept, axis=0)
    found = correct(torch.from_numpy(old), torch.from_numpy(rollout), torch.from_numpy(mask), _correction(config))
    assert found.weights is None and torch.equal(found.response_mask, torch.from_numpy(expected))
    assert 0 < expected.sum() < mask.sum()


def _correction(config: TrainConfig) -> Any:
    return config.algorithm.rollout_correction


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("threshold", ["1.3", "0.8_1.3"])
def test_weights_are_verls(level: str, threshold: str, normalize: bool) -> None:
    given = section(rollout_is=level, rollout_is_threshold=threshold, rollout_is_batch_normalize=normalize)
    config, remarks = converted(*given)
    old, rollout, mask = case(1)
    lower, upper = map(float, threshold.split("_") if "_" in threshold else ("0", threshold))
    expected = np.zeros(mask.shape)
    for row, n in enumerate(mask.sum(1)):
        ratios = old[row, :n] - rollout[row, :n]
        raw = np.exp(ratios if level == "token" else np.full(n, ratios.sum()))
        expected[row, :n] = np.where((raw >= lower) & (raw <= upper), raw, 0.0) if lower else np.minimum(raw, upper)
    kept = (expected > 0) & mask
    if normalize and level == "token":
        expected /= expected[kept].mean()
    elif normalize:
        expected /= np.mean([expected[row, 0] for row in range(len(mask)) if kept[row].any()])
    found = correct(torch.from_numpy(old), torch.from_numpy(rollout), torch.from_numpy(mask), _correction(config))
    assert torch.allclose(found.weights, torch.from_numpy(expected), rtol=1e-12)
    assert torch.equal(found.response_mask, torch.from_numpy(kept))
    assert any("leave the loss's denominator too" in remark for remark in remarks) == bool(lower)


def test_nothing_given_writes_nothing_and_null_is_none() -> None:
    values, remarks = from_verl(["algorithm.adv_estimator=grpo"])
    assert "rollout_correction" not in values["algorithm"] and remarks == []
    config, remarks = converted(*section(rollout_is="null", rollout_rs="null", rollout_rs_threshold="null"))
    assert (_correction(config).rollout_is, _correction(config).rollout_rs, remarks) == ("none", None, [])
    config, _ = converted(*section(rollout_is="token", rollout_is_threshold="null"))
    assert _correction(config).rollout_is == "none", "verl has no weights without a threshold"


def test_bounds_of_k1_are_said_to_be_turned_round() -> None:
    config, remarks = converted(*section(rollout_rs="seq_mean_k1", rollout_rs_threshold="0.5_4.0"))
    assert _correction(config).rollout_rs == {"seq_mean_k1": [0.25, 2.0]}
    [remark] = remarks
    assert remark.startswith(f"{SECTION}.rollout_rs_threshold=0.5_4.0: verl compares pi_rollout / pi_old")


def test_the_cap_of_older_commands_is_a_token_weight() -> None:
    config, remarks = converted("+actor_rollout_ref.actor.tis_imp_ratio_cap=3")
    assert (_correction(config).rollout_is, _correction(config).rollout_is_threshold, remarks) == ("token", 3.0, [])
    config, _ = converted("actor_rollout_ref.actor.tis_imp_ratio_cap=-1")
    assert _correction(config).rollout_is is None


def test_the_keys_that_verl_had_in_algorithm_before() -> None:
    config, remarks = converted(
        "algorithm.rollout_is=True",
        "algorithm.rollout_is_threshold=4.0",
        "algorithm.rollout_is_threshold_lower=0.5",
        "algorithm.rollout_is_level=geometric",
        "algorithm.rollout_is_mode=mask",
        "algorithm.rollout_is_veto_threshold=1e-4",
    )
    found = _correction(config)
    assert (found.rollout_is, found.rollout_is_mode) == ("geometric", "mask")
    assert (found.rollout_is_threshold_lower, found.rollout_is_threshold) == (0.5, 4.0)
    assert found.rollout_rs == {"seq_max_k1": [1e-4, 1e9]}
    assert len(remarks) == 1 and "denominator" in remarks[0]
    config, _ = converted("algorithm.rollout_is=False", "algorithm.rollout_is_threshold=4.0")
    assert _correction(config).rollout_is == "none", "verl then measures weights and does not apply them"


def test_older_names_of_rules_have_bounds_on_the_ratio_itself() -> None:
    given = section(rollout_rs="geometric", rollout_rs_threshold=1.1, rollout_rs_threshold_lower=0.8)
    config, remarks = converted(*given, *section(rollout_token_veto_threshold=1e-3))
    assert _correction(config).rollout_rs == {"seq_mean_k1": [0.8, 1.1], "seq_max_k1": [1e-3, 1e9]} and remarks == []
    old, rollout, mask = case(2)
    rollout[3, 0] = old[3, 0] + 8.0  # a ratio of 3e-4
    kept = correct(torch.from_numpy(old), torch.from_numpy(rollout), torch.from_numpy(mask), _correction(config))
    for row, n in enumerate(mask.sum(1)):
        ratios = old[row, :n] - rollout[row, :n]
        stays = 0.8 <= math.exp(ratios.mean()) <= 1.1 and math.exp(ratios.min()) >= 1e-3
        assert kept.response_mask[row].tolist() == [bool(token) and stays for token in mask[row]]


def test_where_rejected_tokens_count_elsewhere_in_verl_is_said() -> None:
    rejection = section(rollout_rs="seq_mean_k3", rollout_rs_threshold=0.01)
    assert converted(*rejection)[1] == []
    _, remarks = converted(*rejection, "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum")
    assert remarks == [
        "actor.loss_agg_mode=seq-mean-token-sum: rejected responses leave the loss's denominator, where verl counts "
        "them in it"
    ]
    _, remarks = converted(*rejection, "algorithm.adv_estimator=gae")
    assert len(remarks) == 1 and remarks[0].startswith("algorithm.adv_estimator=gae: verl leaves rejected tokens out")


def test_bypass_mode_runs_the_loss_of_its_type() -> None:
    config, remarks = converted(
        "actor_rollout_ref.actor.policy_loss.loss_mode=gspo",
        *section(bypass_mode=True, rollout_is="sequence", rollout_rs="seq_mean_k3", rollout_rs_threshold=0.01),
    )
    found = _correction(config)
    assert (config.actor.policy_loss, config.actor.loss_agg_mode) == ("vanilla", "token-mean")
    assert (found.bypass_mode, found.rollout_is, found.rollout_rs) == (True, None, {"seq_mean_k3": 0.01})
    assert [remark.partition(": ")[0] for remark in remarks] == [
        "actor.policy_loss.loss_mode=gspo",
        f"{SECTION}.rollout_is=sequence",
        f"{SECTION}.bypass_mode=True",
    ]


@pytest.mark.parametrize("kind", ["loss_type=reinforce", "use_policy_gradient=true"])
def test_reinforce_in_bypass_mode_is_gpg_with_weights(kind: str) -> None:
    given = section(bypass_mode=True, rollout_is="token", rollout_is_threshold=2.0, rollout_is_batch_normalize="true")
    config, remarks = converted(*given, f"{SECTION}.{kind}")
    found = _correction(config)
    assert (config.actor.policy_loss, found.rollout_is, found.rollout_is_batch_normalize) == ("gpg", "token", True)
    assert len(remarks) == 1 and "that of a micro-batch" in remarks[0]


def test_what_cannot_be_converted_is_said() -> None:
    _, remarks = converted(
        *section(rollout_rs="'token_k1,token_k2'", rollout_rs_threshold="'1,2,3'", rollout_shape="round")
    )
    assert remarks == [
        f"{SECTION}.rollout_rs=token_k1,token_k2: verl asks for one threshold, or one a rule, and "
        "rollout_rs_threshold has 3; left out",
        f"{SECTION}.rollout_shape=round: there is no such key",
    ]
