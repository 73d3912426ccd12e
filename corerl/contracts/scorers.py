"""Scorers: one response against its ground truth."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from corerl.contracts.kinds import fact

ARGUMENTS = ("response", "ground_truth", "data_source", "extra_info")
"""what a scorer is called with, by position"""


@dataclass(frozen=True)
class ScorerFacts:
    """Facts of a scorer."""

    data_sources: tuple[str, ...] = fact((), "selects the scorer for these values, or patterns, of `data_source`")


class Scorer(Protocol):
    """A function, called once a response, from several threads at a time.

    It may be ``async``: it then runs in one event loop with the others, and whoever calls it waits for its result.

    Its result depends on its arguments alone, and it leaves the process as it is: the working folder, environment
    variables, the handlers of signals, the state of the module random, standard output.

    Args:
        response: the decoded text, special tokens left out.
        ground_truth: ``reward_model.ground_truth`` of the prompt's row.
        data_source: ``data_source`` of the row.
        extra_info: ``extra_info`` of the row, {} where it has none.

    Returns:
        The score, or a mapping with ``score`` and further named components (floats), and optionally ``extracted``,
        the text that was compared. An exception becomes an error of that sample and never a score.
    """

    def __call__(
        self, response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]
    ) -> float | Mapping[str, Any]: ...


@runtime_checkable
class TimedOptions(Protocol):
    """Options of a scorer that keeps deadlines of its own, or that must try whether it can work on this machine."""

    def within(self, timeout: float) -> Any:
        """The options to use, before the first call; ``timeout``: seconds that one score may take (reward.timeout).

        Raises:
            ConfigError: the scorer cannot keep what its options promise.
        """
        ...
