"""Scorers: one response against its ground truth."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

ARGUMENTS = ("response", "ground_truth", "data_source", "extra_info")
"""what a scorer is called with, by position"""


class Scorer(Protocol):
    """A function, called once a response, from several threads at a time; an ``async`` one runs in one event loop with
    others.

    Its result depends on its arguments alone. It leaves the process as it is: working folder, environment variables,
    handlers of signals, state of the module random, standard output.

    Args:
        response: the decoded text without special tokens, behind the tag ``<think>`` if the prompt ends with one.
        ground_truth: ``reward_model.ground_truth`` of the prompt's row.
        data_source: ``data_source`` of the row.
        extra_info: ``extra_info`` of the row, or {}.

    Returns:
        The score, or a mapping with ``score``, further named components (floats) and optionally ``extracted``, the
        compared text. An exception becomes an error of that sample and never a score.
    """

    def __call__(
        self, response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]
    ) -> float | Mapping[str, Any]: ...


@runtime_checkable
class TimedOptions(Protocol):
    """Options of a scorer with deadlines of its own, or with a trial of this machine."""

    def within(self, timeout: float) -> Any:
        """The options to use, before the first call; ``timeout``: seconds for one score (reward.timeout).

        Raises:
            ConfigError: the scorer cannot keep the promise of its options.
        """
        ...
