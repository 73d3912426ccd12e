"""The values of finished groups, read from JSON of anybody: each is checked, and none is converted."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from corerl.batch.rollouts import Branch, Episode, RequestRecord
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion
from corerl.files import is_deeper
from corerl_tools.finished_columns import columns_from_json

DEEPEST = 64
"""levels of lists and objects in messages"""
LARGEST = 2**31 - 1
"""of versions, token ids and counts"""

NUMBER, TEXT = (int, float), (str, type(None))
FINISH_REASONS = ("stop", "length", "abort")
RESULT = {"score": (*NUMBER, type(None)), "components": (dict,), "extracted": TEXT, "error": TEXT, "error_kind": TEXT}
EPISODE = {
    **{"response_mask": (list,), "messages": (list,), "turns": (int,), "reward": NUMBER, "components": (dict,)},
    **{"metrics": (dict,), "error": TEXT, "turn_rewards": (list,), "turn_ids": (list,), "branches": (list,)},
    **{"requests": (list,), "seconds": (dict,), "artifacts": (dict,)},
}
REQUEST = {
    **{"number": (int,), "parent": (int,), "read": (int,), "sampled": (int,)},
    **{"asked": NUMBER, "sent": NUMBER, "answered": NUMBER, "finish_reason": (str,)},
}
BRANCH = {"prompt_ids", "completion", "response_mask", "turn_ids"}
COMPLETION = {"token_ids", "log_probs", "finish_reason", "weight_version", "updates"}


def typed(name: str, value: Any, kinds: tuple[type, ...]) -> Any:
    """The value, of one of these very types.

    Raises:
        TypeError: it is of another type, or a whole number beyond LARGEST.
    """
    if type(value) not in kinds or (type(value) is int and abs(value) > LARGEST):
        raise TypeError(f"{name} is {value!r:.100}")
    return value


def messages_of(messages: list[Any]) -> list[Any]:
    """Raise ValueError for messages that are no objects, or nested so deeply that nobody could write them again."""
    if not all(isinstance(message, dict) for message in messages) or is_deeper(messages, DEEPEST):
        raise ValueError(f"messages are objects of at most {DEEPEST} levels")
    return messages


def token_ids_of(token_ids: Sequence[Any]) -> tuple[int, ...]:
    """Raise ValueError for a list without tokens, or with other values."""
    if not token_ids or not all(type(token) is int and 0 <= token <= LARGEST for token in token_ids):
        raise ValueError(f"token ids are numbers from 0 to {LARGEST}, at least one")
    return tuple(token_ids)


def completion_of(token_ids: Sequence[int], log_probs: Sequence[float], facts: Mapping[str, Any]) -> Completion:
    """A completion of these tokens; ``facts`` has its other attributes."""
    reason = facts["finish_reason"]
    if len(token_ids) != len(log_probs) or not token_ids or min(token_ids) < 0:
        raise ValueError("a response has no tokens, negative ones, or another number of log-probs")
    if not all(map(math.isfinite, log_probs)) or reason not in FINISH_REASONS:
        raise ValueError(f"a response has a log-prob that is not finite, or ended by {reason!r:.100}")
    updates = tuple((start, version) for start, version in facts["updates"])
    starts, versions = [start for start, _ in updates], [facts["weight_version"], *(each for _, each in updates)]
    if not all(type(number) is int and 0 <= number <= LARGEST for number in (*starts, *versions)):
        raise ValueError(f"versions are numbers from 0 to {LARGEST}, not {versions!r:.100}")
    if sorted(starts) != starts or max(starts, default=0) > len(token_ids):
        raise ValueError(f"updates at tokens {starts!r:.100} of {len(token_ids)}")
    columns = columns_from_json(facts.get("columns", {}))
    return Completion(token_ids, log_probs, reason, versions[0], updates, columns)


def result_of(values: Mapping[str, Any]) -> RewardResult:
    """A result of a reward manager."""
    made = RewardResult(**{name: typed(name, value, RESULT[name]) for name, value in values.items()})
    for name, value in made.components.items():
        typed(f"component {name!r:.100}", value, NUMBER)
    if made.score is not None and not math.isfinite(made.score):
        raise ValueError("a score is not finite")
    return made


def episode_of(values: Mapping[str, Any], length: int) -> Episode:
    """An episode whose response has ``length`` tokens; fields that an older file lacks have their defaults."""
    made = Episode(**{name: typed(name, value, EPISODE[name]) for name, value in values.items()})
    metrics = {name: tuple(each) if type(each) is list else each for name, each in made.metrics.items()}
    _finite([made.reward, *made.components.values(), *made.turn_rewards, *made.seconds.values()])
    for each in metrics.values():
        for number in each if type(each) is tuple else [each]:
            typed("a metric", number, NUMBER)  # may be NaN: no update depends on it
    if any(len(each) != 2 for each in metrics.values() if type(each) is tuple):
        raise ValueError("a metric of an episode is neither a number nor a pair")
    if len(made.turn_rewards) > made.turns:
        raise ValueError(f"an episode has {len(made.turn_rewards)} rewards of {made.turns} turns")
    _check_mask(made.response_mask, made.turn_ids or None, length, made.turns)
    messages_of(made.messages)
    for name, text in made.artifacts.items():
        typed(f"artifact {name!r:.100}", text, (str,))
    branches = [_branch(each, made.turns) for each in made.branches]
    _check_trained_once([made.turn_ids, *(branch.turn_ids for branch in branches)])
    requests = [_request(number, each) for number, each in enumerate(made.requests)]
    if requests and len(requests) != made.turns:
        raise ValueError(f"an episode of {made.turns} turns has {len(requests)} requests")
    return dataclasses.replace(made, metrics=metrics, branches=branches, requests=requests)


def _finite(numbers: Iterable[Any]) -> None:
    if not all(type(number) in NUMBER and math.isfinite(number) for number in numbers):
        raise ValueError("a reward, a component or a time of an episode is no finite number")


def _check_mask(mask: Sequence[Any], turn_ids: Sequence[Any] | None, length: int, turns: int) -> None:
    """``turn_ids`` of an episode may be unknown: None."""
    if len(mask) != length or not all(type(each) is bool for each in mask):
        raise ValueError(f"response_mask has {len(mask)} values for {length} tokens, or others than bools")
    if turn_ids is None:
        return
    if not all(type(turn) is int and -1 <= turn < turns for turn in turn_ids):
        raise ValueError(f"turn_ids are numbers from -1 to {turns - 1}")
    if [turn >= 0 for turn in turn_ids] != list(mask):
        raise ValueError("turn_ids name other sampled tokens than response_mask")


def _check_trained_once(rows: Iterable[Sequence[int]]) -> None:
    seen: set[int] = set()
    for turn_ids in rows:
        own = set(turn_ids) - {-1}
        if own & seen:
            raise ValueError(f"the samples of turns {sorted(own & seen)!r:.100} are in two rows of an episode")
        seen |= own


def _branch(values: Any, turns: int) -> Branch:
    values = typed("a branch", values, (dict,))
    of_tokens = typed("completion", values["completion"], (dict,))
    if values.keys() != BRANCH or of_tokens.keys() - {"columns"} != COMPLETION:
        raise TypeError(f"a branch has {[*values, *of_tokens]!r:.200}")
    token_ids = token_ids_of(typed("token_ids", of_tokens["token_ids"], (list,)))
    log_probs = typed("log_probs", of_tokens["log_probs"], (list,))
    _finite(log_probs)
    mask, turn_ids = (
        typed("response_mask", values["response_mask"], (list,)),
        typed("turn_ids", values["turn_ids"], (list,)),
    )
    _check_mask(mask, turn_ids, len(token_ids), turns)
    completion = completion_of(list(token_ids), log_probs, of_tokens)
    return Branch(token_ids_of(typed("prompt_ids", values["prompt_ids"], (list,))), completion, mask, turn_ids)


def _request(number: int, values: Any) -> RequestRecord:
    values = typed("a request", values, (dict,))
    made = RequestRecord(**{name: typed(name, value, REQUEST[name]) for name, value in values.items()})
    if made.number != number or not -1 <= made.parent < number:
        raise ValueError(f"request {number} of an episode is {made.number} and continues {made.parent}")
    if made.read < 0 or made.sampled < 0 or made.finish_reason not in FINISH_REASONS:
        raise ValueError(f"request {number} has negative numbers of tokens, or ended by {made.finish_reason!r:.100}")
    times = [0.0, made.asked, made.sent, made.answered]
    _finite(times)
    if sorted(times) != times:
        raise ValueError(f"request {number} has times {times} that do not ascend from 0")
    return made
