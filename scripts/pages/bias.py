"""Write the tables of docs/algorithms/bias.md: expected gradients by enumeration, beside the true ones.

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``. Run it after an entry or a claim has changed::

    python -m scripts.pages.bias
"""

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch

from corerl.registry import Entry
from corerl_correction.centering import ScoreCentering
from corerl_correction.claims import MODES
from corerl_correction.corrector import ImportanceCorrector
from corerl_testing.enumerable import GAMES, Point, Update
from corerl_testing.enumerable.claims import LOSS_MODES, OFF_POLICY, Comparison, of_estimator, of_loss
from corerl_testing.enumerable.combinations import takes_tokens
from corerl_testing.enumerable.correction import of_corrector
from corerl_testing.enumerable.kl import expected_kl
from corerl_testing.enumerable.objectives import objective, tokens_kl
from corerl_testing.invariance import AGGREGATIONS
from scripts.known_names import ROOT
from scripts.pages.markdown import table
from scripts.pages.reference import plugins

PAGE = ROOT / "docs" / "algorithms" / "bias.md"
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->\n)", flags=re.DOTALL)
SCORE = objective("expected score")
REQUIRED: dict[str, dict[str, Any]] = {"a2po": {"value_key": "value"}}
"""options without defaults: the games' component that is a number of the prompt"""

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "grpo": [{"norm_adv_by_std_in_grpo": False}],
    "turn_returns": [{"gamma": 0.9}],
    "turn_grpo": [{"norm_adv_by_std_in_grpo": True}],
    "turn_rloo": [{"anchor": "turn"}],
    "distill": [
        {"divergence": "forward_kl"},
        {"divergence": "jsd"},
        {"form": "top_k", "top_k": 1},
        {"form": "sampled"},
        {"form": "sampled", "use_task_reward": True},
    ],
    "turn_gae": [{"whiten": False}, {"whiten": False, "lam": 0.9}],
}
"""options that change the bias"""


def render(page: str) -> str:
    """The page, with its tables made anew."""
    return BLOCK.sub(lambda match: match[1] + TABLES[match[2]]() + match[3], page)


def measures(compared: Iterable[Comparison]) -> tuple[str, ...]:
    """Nearest factors with groups of 2 and of 3, largest rest, smallest cosine."""
    found = list(compared)
    factors = (span(each.factor for each in found if each.n == n) for n in (2, 3))
    return *factors, rest(found), cosine(found)


def span(values: Iterable[float]) -> str:
    """The least and the largest of some numbers, or the one number."""
    shown = sorted(f"{value:.3g}" for value in values)
    ends = sorted(set(shown), key=float)
    return ends[0] if len(ends) == 1 else f"{ends[0]} to {ends[-1]}"


def rest(compared: Iterable[Comparison]) -> str:
    """The largest distance from the nearest multiple; 0: exact."""
    worst = max(each.error() for each in compared)
    return "0" if worst < 1e-6 else f"{worst:.2g}"


def cosine(compared: Iterable[Comparison]) -> str:
    return f"{min(each.cosine for each in compared):.3f}"


def words(options: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}: {str(value).lower() if isinstance(value, bool) else value}".replace("'", "")
        for name, value in options.items()
    )


def estimators() -> str:
    """Every estimator beside the gradient of the expected score."""
    registry = plugins().registries.advantage_estimators
    rows = []
    for entry in registry:
        for options in ({}, *VARIANTS.get(entry.name, [])):
            chosen = registry.with_options(entry, REQUIRED.get(entry.name, {}) | options, entry.name).load()
            compared = [each for each in of_estimator(chosen, SCORE) if each.binary or not _is_binary(entry)]
            title = f"`{entry.name}`" + (f" with `{words(options)}`" if options else "")
            claims = "" if options else str(entry.facts.claims or "")
            rows.append((title, claims, *measures(compared)))
    heads = ("estimator", "claims", "factor, n = 2", "factor, n = 3", "largest rest", "smallest cosine")
    return table(heads, rows)


def _is_binary(entry: Entry[Any]) -> bool:
    """The estimator takes scores of 0 to 1 alone."""
    claims = entry.facts.claims
    return bool(claims) and claims.bias == "unbiased" and objective(claims.of).binary


def aggregations() -> str:
    """RLOO with every aggregation."""
    rloo = plugins().registries.advantage_estimators.select("rloo").load()
    rows = [(f"`{mode}`", *measures(of_estimator(rloo, SCORE, Update(mode=mode)))) for mode in AGGREGATIONS]
    return table(("aggregation", "factor, n = 2", "factor, n = 3", "largest rest", "smallest cosine"), rows)


def losses() -> str:
    """Every loss at the policy that sampled, and at another one."""
    registry = plugins().registries.policy_losses
    rows = []
    claiming = [entry for entry in registry if entry.facts.claims is not None]
    variants = [(each, options) for each in claiming for options in ({}, *VARIANTS.get(each.name, []))]
    for entry, options in variants:
        chosen = registry.with_options(entry, options, entry.name)
        of = objective(entry.facts.claims.of, chosen.options)
        given = (chosen.load(), chosen.load_fact("select_tokens"), of)
        mode = min(LOSS_MODES, key=lambda each: max(one.error(1.0) for one in of_loss(*given, mode=each)) > 1e-10)
        here, there = (list(of_loss(*given, mode=mode, off_policy=distance)) for distance in (0.0, OFF_POLICY))
        factors = [span(each.factor for each in compared) for compared in (here, there)]
        takes = ("no", "yes")[takes_tokens(chosen)] if entry.facts.claims.of == "expected score" else ""
        claims = "" if options else str(entry.facts.claims)
        title = f"`{entry.name}`" + (f" with `{words(options)}`" if options else "")
        rows.append((title, claims, factors[0], rest(here), takes, factors[1], rest(there), cosine(there)))
    heads = (
        "loss",
        "claims",
        "factor",
        "rest",
        "of tokens",
        "factor off-policy",
        "rest off-policy",
        "cosine off-policy",
    )
    return table(heads, rows)


def kl_types() -> str:
    """Mean and mean gradient of every KL type."""
    registry = plugins().registries.kl_types
    rows = []
    for entry in registry:
        values, gradients = [], []
        for game in GAMES[:2]:
            point = Point.of(game)
            value, gradient = expected_kl(registry.with_options(entry, {}, entry.name), point)
            leaf = point.leaf()
            true = tokens_kl(leaf)
            (slope,) = torch.autograd.grad(true, leaf.logits)
            values.append(float(value / true.detach()))
            gradients.append(Comparison(game.name, 1, False, gradient, slope))
        rows.append((f"`{entry.name}`", str(entry.facts.claims), span(values), *_of_gradient(gradients)))
    return table(("KL type", "claims", "mean", "mean gradient", "largest rest"), rows)


def _of_gradient(compared: list[Comparison]) -> tuple[str, str]:
    if max(float(each.found.norm() / each.true.norm()) for each in compared) < 1e-10:
        return "0", ""
    return span(each.factor for each in compared), rest(compared)


def corrections() -> str:
    """RLOO with samples of another policy, and the corrections."""
    rloo = plugins().registries.advantage_estimators.select("rloo").load()
    rows = []
    for config in MODES:
        corrector = ImportanceCorrector(config)
        terms = [ScoreCentering(config, temperature=1.0)] if config.score_centering else []
        found = list(of_corrector(corrector, terms, estimator=rloo))
        title = f"`{words(_changed(config))}`"
        rows.append((title, str(corrector.claims), span(each.factor for each in found), rest(found), cosine(found)))
    return table(("`algorithm.rollout_correction`", "claims", "factor, n = 2", "largest rest", "smallest cosine"), rows)


def _changed(config: Any) -> dict[str, Any]:
    """The options that differ from their defaults."""
    given = dataclasses.asdict(config)
    default = dataclasses.asdict(type(config)())
    return {name: value for name, value in given.items() if value != default[name]}


TABLES: dict[str, Callable[[], str]] = {
    "estimators": estimators,
    "aggregations": aggregations,
    "losses": losses,
    "kl_types": kl_types,
    "corrections": corrections,
}

if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
