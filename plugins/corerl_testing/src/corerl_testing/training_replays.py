"""Checks of training strategies that replay columns of tokens (fact ``replays``)."""

from collections.abc import Callable

from corerl.contracts.training_strategies import TrainingStrategyFactory
from corerl.registry import Selected
from corerl_testing.results import CheckFailed, CheckSkipped
from corerl_testing.tiny_model import VOCABULARY, reference, tiny_model
from corerl_testing.training_kept import kept_tokens
from corerl_testing.training_reference import batch, build, error, given_output, tolerance, true_outputs
from corerl_testing.training_updates import LONG, OUTPUTS, agrees

Factory = Selected[TrainingStrategyFactory]


def _kept_tokens(selected: Factory) -> None:
    """Outputs and updates are over the kept tokens of truncated sampling."""
    if "kept_tokens" not in selected.entry.facts.replays:
        raise CheckSkipped("the strategy does not replay kept_tokens")
    experience = batch()
    experience.columns["kept_tokens"] = kept_tokens(experience, VOCABULARY)
    strategy = build(selected)
    for output in OUTPUTS:
        given = given_output(strategy.forward(experience, [output]), output)
        expected = true_outputs(reference(tiny_model()), experience, output, 1.0)
        off = max(error(given[row, : len(each)], each) for row, each in enumerate(expected))
        if not off <= tolerance(strategy):
            raise CheckFailed(f"{output} over kept tokens is up to {off:.2g} off softmax(logits) of these tokens alone")
    agrees(selected, LONG, batches=[experience], what=" over kept tokens")


REPLAYS: dict[str, Callable[[Factory], None]] = {"kept_tokens": _kept_tokens}
