"""Shares of responses without an extracted answer or cut off, and a scorer that would read more of them."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from corerl.contracts.reward_managers import RewardManagerFactory, RewardResult
from corerl.contracts.scorers import Scorer
from corerl.registry import Registry, Selected
from corerl.rollout.scoring import load_reward_manager
from corerl_tools.evaluation.files import Response

if typing.TYPE_CHECKING:
    from corerl.contracts.config import RewardConfig

MANY = 0.1
"""share of responses without an answer from which on other scorers are tried"""
TRIED = 200
"""responses that other scorers are tried on"""


class Reading(NamedTuple):
    """What a scorer read of the responses of one data source.

    Attributes:
        without_answer: responses without an extracted answer.
        cut_off: responses that ended at the limit of their length.
        all_zero: no response has a score above 0.
        extracts: the scorer extracted an answer at least once.
    """

    responses: int
    without_answer: int
    cut_off: int
    all_zero: bool
    extracts: bool

    @property
    def is_suspicious(self) -> bool:
        """Whether another scorer may read more."""
        return self.all_zero or (self.extracts and self.without_answer >= MANY * self.responses)

    def line(self) -> str | None:
        """One line for the terminal; None if every response was read to its end."""
        told = [(self.without_answer, "without an extracted answer")] if self.extracts or self.all_zero else []
        told += [(self.cut_off, "cut off at the limit of tokens")]
        parts = [f"{count / self.responses:.2%} {words} ({count})" for count, words in told if count]
        return f"of {self.responses} responses, {', '.join(parts)}" if parts else None


def readings(responses: Sequence[Response], results: Sequence[RewardResult]) -> dict[str, Reading]:
    """The reading of each data source, of its responses with a score."""
    pairs = [pair for pair in zip(responses, results, strict=True) if pair[1].score is not None]
    return {
        source: _reading([pair for pair in pairs if pair[0].data_source == source])
        for source in dict.fromkeys(response.data_source for response, _ in pairs)
    }


def _reading(pairs: Sequence[tuple[Response, RewardResult]]) -> Reading:
    return Reading(
        responses=len(pairs),
        without_answer=sum(not result.extracted for _, result in pairs),
        cut_off=sum(response.is_cut_off for response, _ in pairs),
        all_zero=all((result.score or 0) <= 0 for _, result in pairs),
        extracts=any(result.extracted for _, result in pairs),
    )


class Reader(NamedTuple):
    """A scorer that reads more: as written in a config, the answers that it reads of ``tried`` and their mean score."""

    written: str
    read: int
    tried: int
    score: float

    def line(self) -> str:
        return (
            f"{self.written} reads an answer in {self.read} of {self.tried} responses, with a mean score of "
            f"{self.score:.4f}: --scorer '{self.written}'"
        )


def better_reader(
    responses: Sequence[Response],
    results: Sequence[RewardResult],
    used: Selected[Scorer],
    scorers: Registry[Scorer],
    config: "RewardConfig",
    manager: Selected[RewardManagerFactory],
) -> Reader | None:
    """The scorer with the highest mean score on responses of one data source, if it is above that of ``used``.

    Tried are other options of ``used``, and other scorers of its distribution that have data sources.
    """
    candidates = dict(_candidates(used, scorers))
    step = -(-len(responses) // TRIED)
    chosen = list(zip(responses, results, strict=True))[::step]
    requests = [
        dataclasses.replace(response.reward_request(0), data_source=written)
        for written in candidates
        for response, _ in chosen
    ]
    reward = load_reward_manager(candidates, config, manager)
    try:
        graded = reward.score(requests)
    finally:
        reward.close()
    best = Reader("", 0, len(chosen), fmean(result.score or 0.0 for _, result in chosen))
    for number, written in enumerate(candidates):
        own = graded[number * len(chosen) : (number + 1) * len(chosen)]
        score = fmean(result.score or 0.0 for result in own)
        if score > best.score:
            best = Reader(written, sum(bool(result.extracted) for result in own), len(chosen), score)
    return best if best.written else None


def _candidates(used: Selected[Scorer], scorers: Registry[Scorer]) -> Iterator[tuple[str, Selected[Scorer]]]:
    """(as written in a config, the scorer with these options)."""
    for name, value in _other_values(used):
        options = {**_given(used), name: value}
        written = ", ".join(f"{key}: {_text(each)}" for key, each in options.items())
        yield f"{{name: {used.entry.name}, {written}}}", scorers.with_options(used.entry, options, "--scorer")
    targets = {used.entry.target}
    for entry in scorers:
        if entry.owner == used.entry.owner and entry.facts.data_sources and entry.target not in targets:
            targets.add(entry.target)
            yield entry.name, scorers.with_options(entry, {}, "--scorer")


def _other_values(used: Selected[Scorer]) -> Iterator[tuple[str, Any]]:
    """Option and value, for every choice of the scorer's own options that is not made; inherited options stay."""
    declared = used.entry.load_options()
    if declared is None:
        return
    own = typing.get_type_hints(declared)
    for field in dataclasses.fields(declared):
        if field.name in vars(declared).get("__annotations__", {}):
            choices = (True, False) if own[field.name] is bool else typing.get_args(own[field.name])
            is_choice = own[field.name] is bool or typing.get_origin(own[field.name]) is typing.Literal
            present = getattr(used.options, field.name)
            yield from ((field.name, value) for value in choices if is_choice and value != present)


def _given(used: Selected[Scorer]) -> Mapping[str, Any]:
    """The options that differ from their defaults."""
    return {
        field.name: getattr(used.options, field.name)
        for field in used.entry.option_fields()
        if getattr(used.options, field.name) != field.default and field.init
    }


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
