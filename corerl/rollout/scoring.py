"""Scores: which scorer scores what, failed samples."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from corerl.contracts.config import RewardConfig
from corerl.contracts.options import did_you_mean
from corerl.contracts.reward_managers import RewardManager, RewardManagerFactory, RewardResult, error_kind
from corerl.contracts.scorers import Scorer
from corerl.errors import ConfigError, DataError, NameClashError, RequestError, RunError
from corerl.registry import Entry, Registries, Selected
from corerl.registry.parts import Parts
from corerl.registry.scorers import keys_for, load_scorer, table_of_sources


def select_scorers(data_sources: Iterable[str], parts: Parts, registries: Registries) -> dict[str, Selected[Scorer]]:
    """The scorer of each data source: from ``reward.scorers``, else ``reward.scorer``, else the one registered for it.

    Raises:
        ConfigError: two patterns of ``reward.scorers`` fit a source, or a key of it fits none.
        DataError: nobody scores a source; the known ones are named.
        NameClashError: two scorers are registered for it.
    """
    scorers, reasons = scorers_or_reasons(data_sources, parts, registries)
    for reason in reasons.values():
        raise reason
    return scorers


def scorers_or_reasons(
    data_sources: Iterable[str], parts: Parts, registries: Registries
) -> tuple[dict[str, Selected[Scorer]], dict[str, RequestError]]:
    """As :func:`select_scorers`, and of the sources that nobody scores, why; under '' what is wrong with a key.

    A source without a scorer is none of them if the reward manager needs no scorers.
    """
    sources, table = list(data_sources), table_of_sources(registries.scorers)
    scorers: dict[str, Selected[Scorer]] = {}
    reasons: dict[str, RequestError] = {}
    try:
        _check_keys(parts.scorers, sources, table)
    except ConfigError as error:
        reasons[""] = error
    for source in sources:
        try:
            configured = _configured(source, parts.scorers) or parts.scorer
            scorers[source] = configured or _registered(source, table, registries)
        except RequestError as error:
            if not (isinstance(error, DataError) and parts.reward_manager.entry.facts.scores_alone):
                reasons[source] = error
    return scorers, reasons


def _check_keys(keys: Iterable[str], sources: Iterable[str], table: Iterable[str]) -> None:
    """Raise ConfigError for a key of ``reward.scorers`` that is neither in this run's data nor known elsewhere."""
    for key in keys:
        if not any(keys_for(source, [key]) for source in sources) and not keys_for(key, table):
            raise ConfigError(
                f"reward.scorers.{key}",
                f"no row has this data_source{did_you_mean(key, sources)}; the data has {', '.join(sources)}",
            )


def _configured(source: str, scorers: Mapping[str, Selected[Scorer]]) -> Selected[Scorer] | None:
    keys = keys_for(source, scorers)
    if any(scorers[key] != scorers[keys[0]] for key in keys):
        raise ConfigError(
            "reward.scorers", f"data_source '{source}' matches {' and '.join(map(repr, keys))}: add a key '{source}'"
        )
    return scorers[keys[0]] if keys else None


def _registered(source: str, table: Mapping[str, Sequence[Entry[Scorer]]], registries: Registries) -> Selected[Scorer]:
    entries = {entry.name: entry for key in keys_for(source, table) for entry in table[key]}
    if not entries:
        known = ", ".join(sorted(table)) or "none: no installed plugin registers a scorer (pip install corerl-rewards)"
        raise DataError(
            f"data_source '{source}' has no scorer{did_you_mean(source, table)}: set "
            f"reward.scorers='{{{source}: NAME}}' with a scorer of 'corerl plugins list' or "
            f"./file.py:function, or reward.scorer for all rows; known data sources: {known}"
        )
    if len(entries) > 1:
        names = " and ".join(f"'{entry.name}' of {entry.owner}" for entry in entries.values())
        raise NameClashError(
            f"data_source '{source}' is scored by {names}: choose one with reward.scorers='{{{source}: NAME}}'"
        )
    return registries.scorers.select(next(iter(entries)), "reward.scorer")


def load_reward_manager(
    scorers: Mapping[str, Selected[Scorer]], config: RewardConfig, manager: Selected[RewardManagerFactory]
) -> RewardManager:
    """The reward manager of a run, with the scorers of its data sources.

    Raises:
        ConfigError: a scorer cannot keep what its options promise on this machine.
    """
    loaded = {source: load_scorer(scorer, config.timeout) for source, scorer in scorers.items()}
    return manager.load()(loaded, num_workers=config.num_workers, timeout=config.timeout)


def check_results(results: Sequence[RewardResult], count: int) -> None:
    """Whether a reward manager kept its contract.

    Raises:
        RunError: it gave another number of results than there are responses, or a score that is not finite.
    """
    if len(results) != count:
        raise RunError(f"the reward manager returned {len(results)} results for {count} responses")
    for number, result in enumerate(results):
        if result.score is not None and not math.isfinite(result.score):
            raise RunError(
                f"the reward manager returned the score {result.score} for response {number}: a score must be "
                "finite, or None with an error"
            )


def check_error_rate(results: Sequence[RewardResult], responses: Sequence[str], most: float, examples: int = 3) -> None:
    """Whether few enough responses ended without a score.

    Raises:
        RunError: more than the share ``most``; kinds, their counts and some responses are named.
    """
    failed = [(result, response) for result, response in zip(results, responses, strict=True) if result.score is None]
    if len(failed) <= most * len(results):
        return
    kinds = ", ".join(
        f"{count} {kind}" for kind, count in Counter(error_kind(each) for each, _ in failed).most_common()
    )
    first_of_reason = {result.error: response for result, response in reversed(failed)}
    lines = [
        f"{len(failed)} of {len(results)} responses could not be scored ({kinds}), more than "
        f"reward.max_error_rate={most:g} allows:"
    ]
    lines += [
        f"  {reason}, for a response that ends in {response[-40:]!r}"
        for reason, response in list(reversed(first_of_reason.items()))[:examples]
    ]
    raise RunError("\n".join(lines))


class Outcome(Protocol):
    """The end of an episode: its reward, parts of the reward by name, and why it takes no part in training, or None."""

    @property
    def total_reward(self) -> float: ...

    @property
    def components(self) -> Mapping[str, float]: ...

    @property
    def error(self) -> str | None: ...


def add_agent(results: Sequence[RewardResult] | None, episodes: Sequence[Outcome]) -> list[RewardResult]:
    """Scores of episodes: the agent's reward, plus the scorer's score as the component ``scorer``.

    An episode that failed has no score.

    Args:
        results: the scorers'; None where the agent's rewards are all.
    """
    scored = results or [RewardResult(0.0)] * len(episodes)
    return [_with_agent(*pair, is_scored=results is not None) for pair in zip(scored, episodes, strict=True)]


def _with_agent(result: RewardResult, episode: Outcome, *, is_scored: bool) -> RewardResult:
    if episode.error is not None:
        return RewardResult(None, error=episode.error)
    if result.score is None:
        return result
    parts = {**result.components, "scorer": result.score} if is_scored else {}
    reward = episode.total_reward
    parts |= episode.components or {"agent": reward}
    return dataclasses.replace(result, score=result.score + reward, components=parts)
